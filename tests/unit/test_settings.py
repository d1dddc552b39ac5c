from __future__ import annotations

from pathlib import Path

import pytest

from shared import settings as definition
from shared.errors import ConfigError
from shared.setting_sources import load


def test_defaults_need_no_environment():
    settings = load({})
    assert settings.address() == ("127.0.0.1", 9090)
    assert settings.data == Path("data")


def test_environment_overrides_the_toml_file_which_overrides_defaults(tmp_path):
    file = tmp_path / "triptych.toml"
    file.write_text('shards = 3\nlisten = "127.0.0.1:1"\nquery_timeout = "30s"\n')
    settings = load({"TRIPTYCH_CONFIG": str(file), "TRIPTYCH_LISTEN": "127.0.0.1:2"})
    assert (settings.shards, settings.listen, settings.query_timeout_ms) == (3, "127.0.0.1:2", 30_000)


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("TRIPTYCH_SHARDS", "-1", "TRIPTYCH_SHARDS is -1; it must be at least 0"),
        ("TRIPTYCH_SHARDS", "many", "TRIPTYCH_SHARDS is 'many'; it must be a whole number"),
        ("TRIPTYCH_LISTEN", "9090", "TRIPTYCH_LISTEN is '9090'; it must be host:port"),
        ("TRIPTYCH_LISTEN", "127.0.0.1:70000", "TRIPTYCH_LISTEN"),
        ("TRIPTYCH_LISTEN", "127.0.0.1:²", "TRIPTYCH_LISTEN is '127.0.0.1:²'; it must be host:port"),
        ("TRIPTYCH_LOG_LEVEL", "loud", "TRIPTYCH_LOG_LEVEL is 'loud'; it must be one of debug"),
        ("TRIPTYCH_OTLP_TRANSLATION_STRATEGY", "none", "is 'none'; it must be one of UnderscoreEscapingWithSuffixes, "),
        ("TRIPTYCH_REMOTE_WRITE", "maybe", "TRIPTYCH_REMOTE_WRITE is 'maybe'; it must be true or false"),
        ("TRIPTYCH_BODY_BYTES_MAX", "big", "TRIPTYCH_BODY_BYTES_MAX is 'big'; it must be a size such as 64MB"),
        (
            "TRIPTYCH_DECOMPRESSED_BYTES_MAX",  # places in such a body have 31 bits
            "2GB",
            "TRIPTYCH_DECOMPRESSED_BYTES_MAX is 2147483648; it must be at most 2147483647",
        ),
        ("TRIPTYCH_QUERY_TIMEOUT", "soon", "TRIPTYCH_QUERY_TIMEOUT is 'soon'; it must be a duration such as 30s"),
    ],
)
def test_a_bad_value_is_refused_with_the_name_of_its_setting(variable, value, named):
    with pytest.raises(ConfigError, match="TRIPTYCH_") as refused:
        load({variable: value})
    assert named in str(refused.value)


def test_more_workers_than_shards_are_refused():
    with pytest.raises(ConfigError, match="TRIPTYCH_WORKERS is 9; it must be at most TRIPTYCH_SHARDS, which is 8"):
        load({"TRIPTYCH_WORKERS": "9", "TRIPTYCH_SHARDS": "8"})


@pytest.mark.parametrize(
    ("cores", "workers", "found"),
    [(1, 0, (1, 4)), (2, 0, (2, 4)), (8, 0, (8, 16)), (64, 0, (16, 16)), (2, 5, (5, 10)), (2, 40, (40, 40))],
)
def test_a_number_of_shards_that_is_not_set_follows_the_workers(monkeypatch, cores, workers, found):
    monkeypatch.setattr(definition, "_cores", lambda: cores)
    settings = load({"TRIPTYCH_WORKERS": str(workers)})
    assert (settings.worker_count(), settings.shard_count()) == found


@pytest.mark.parametrize(
    ("line", "seen", "expected"),
    [
        ("head.a = 0", "head_bytes is {'a': 0}", "a size such as 64MB"),
        ("shards = [4]", "shards is [4]", "a whole number"),
        ("shards = 2.5", "shards is 2.5", "a whole number"),
        ("shards = true", "shards is True", "a whole number"),
        ("listen = 9090", "listen is 9090", "text"),
        ("data = 1", "data is 1", "text"),
        ("query_timeout = {}", "query_timeout_ms is {}", "a duration such as 30s"),
    ],
)
def test_a_value_of_another_type_in_the_file_is_refused(tmp_path, line, seen, expected):
    path = tmp_path / "triptych.toml"
    path.write_text(line)
    with pytest.raises(ConfigError) as refusal:
        load({"TRIPTYCH_CONFIG": str(path)})
    assert seen in str(refusal.value) and f"it must be {expected}" in str(refusal.value)


def test_sizes_and_durations_take_units():
    settings = load({"TRIPTYCH_BODY_BYTES_MAX": "32MB", "TRIPTYCH_QUERY_TIMEOUT": "1m30s"})
    assert (settings.body_bytes_max, settings.query_timeout_ms) == (32 << 20, 90_000)


def test_an_unknown_name_in_the_file_is_refused(tmp_path):
    file = tmp_path / "triptych.toml"
    file.write_text("shard = 3\n")
    with pytest.raises(ConfigError, match="'shard' is not a setting"):
        load({"TRIPTYCH_CONFIG": str(file)})


def test_a_missing_or_broken_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load({"TRIPTYCH_CONFIG": str(tmp_path / "none.toml")})
    broken = tmp_path / "broken.toml"
    broken.write_text("shards = = 3")
    with pytest.raises(ConfigError, match="is not TOML"):
        load({"TRIPTYCH_CONFIG": str(broken)})


def test_the_documentation_lists_every_setting():
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    assert definition.table() in page, "run `python -m shared.settings` and put its table into docs/operations.md"
