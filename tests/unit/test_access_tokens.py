"""The file of tokens, and tokens that are made."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator import cli
from coordinator.access.passwords import is_match
from coordinator.access.roles import Role
from coordinator.access.tokens import mint, parse, split
from coordinator.command_client import Client, CommandError, Reach, authorization
from shared.errors import ConfigError

PATH = Path("tokens.toml")
HASH = "$2b$04$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"
ONE = f'[a]\nhash = "{HASH}"\n'


def test_a_token_has_its_roles_and_limits() -> None:
    token = parse(f'{ONE}metrics = "read"\nlog = "admin"\nshare = 20\nrequests_per_second = 1.5'.encode(), PATH)["a"]
    assert token.roles == (Role.READ, Role.ADMIN, Role.NONE)
    assert (token.share, token.requests_per_second) == (20, 1.5)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (ONE, "has no role"),
        (ONE + 'metrics = "owner"', "Invalid enum value 'owner'"),
        (ONE + 'metrics = "read"\nrate = 5', "unknown field `rate`"),
        (ONE + 'metrics = "read"\nshare = 0', ">= 1"),
        (ONE + 'metrics = "read"\nshare = 101', "<= 100"),
        (ONE + 'metrics = "read"\nrequests_per_second = 0', "> 0"),
        (ONE + 'metrics = "read"\nrequests_per_second = nan', "requests_per_second"),
        (ONE + ONE, "is not TOML"),
        ('[a]\nmetrics = "read"', "missing required field `hash`"),
        ('[a]\nhash = "secret"\nmetrics = "read"', "is not a bcrypt hash"),
        (ONE.replace("$04$", "$20$") + 'metrics = "read"', "it must be 4 to 15"),
        (ONE.replace("[a]", '["a b"]') + 'metrics = "read"', "is not a name of a token"),
        ("[a", "is not TOML"),
        ("\x00", "is not TOML"),
        ("a = 1", "Expected `object`"),
    ],
)
def test_a_wrong_file_is_refused_with_what_is_wrong(content: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(content.encode(), PATH)
    assert why in str(refused.value)
    assert str(PATH) in str(refused.value)
    assert HASH not in str(refused.value)


def test_a_made_token_is_the_one_of_its_lines() -> None:
    token, lines = mint("a-b_1")
    name, secret = split(token) or ("", "")
    assert name == "a-b_1"
    assert len(secret) >= 32  # 192 bits
    hashed = parse(f'{lines}vectors = "write"'.encode(), PATH)[name].hash
    assert is_match(secret.encode(), hashed)
    assert not is_match(secret.encode()[:-1], hashed)
    assert mint("a-b_1")[0] != token


@pytest.mark.parametrize(
    "text", ["", "a", "triptych", "triptych.", "triptych.a", "triptych.a.", "triptych..s", "x.a.s"]
)
def test_other_text_is_no_token(text: str) -> None:
    assert split(text) is None


def test_the_command_adds_a_token_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tokens.toml"
    for name, roles in (("a", ["--metrics", "read"]), ("b", ["--log", "write", "--vectors", "admin"])):
        assert cli.main(["token", name, *roles, "--append", str(path)]) == 0
    printed = capsys.readouterr().out.split()
    known = parse(path.read_bytes(), path)
    assert [split(token)[0] for token in printed] == ["a", "b"] == list(known)
    assert known["b"].roles == (Role.NONE, Role.WRITE, Role.ADMIN)
    assert path.stat().st_mode & 0o777 == 0o600
    assert not any(split(token)[1] in path.read_text() for token in printed)
    before = path.read_bytes()
    assert cli.main(["token", "a", "--log", "read", "--append", str(path)]) == 1
    assert "remove its lines first" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_a_token_without_a_role_is_not_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["token", "a"]) == 1
    assert "has no role" in capsys.readouterr().err


def test_commands_read_their_token_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("triptych.a.s\n")
    monkeypatch.delenv("TRIPTYCH_TOKEN", raising=False)
    assert authorization(None) == ""
    assert authorization(file) == "Bearer triptych.a.s"
    monkeypatch.setenv("TRIPTYCH_TOKEN", "user:password")
    assert authorization(None) == "Basic dXNlcjpwYXNzd29yZA=="
    assert authorization(file) == "Bearer triptych.a.s"
    for wrong in ("a\nb", "a\x00b"):
        file.write_text(wrong)
        with pytest.raises(CommandError, match="no header may have"):
            authorization(file)
    with pytest.raises(CommandError, match="cannot be read"):
        authorization(tmp_path / "none")
    file.write_text("\n")
    with pytest.raises(CommandError, match="token, which is empty"):
        authorization(file)


@pytest.mark.parametrize("url", ["http://user:PASSWORD@localhost", "user:PASSWORD@localhost:9090"])
def test_a_password_in_a_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(CommandError, match="token-file") as refused:
        Client(url)
    assert "PASSWORD" not in str(refused.value)


def test_certificates_that_cannot_be_read_are_an_error_of_the_command(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="--ca"):
        Client.of(Reach("https://localhost", ca=tmp_path / "x"))
