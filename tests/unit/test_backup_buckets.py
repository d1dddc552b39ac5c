"""Buckets as places of backups: answers that are lost, slow networks, and what is said of wrong ones."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from coordinator.backup.destination import open_place
from coordinator.backup.inventory import BackupError, object_name
from coordinator.backup.place import LOCK
from tests.s3_server import S3Server
from tests.unit.backup_places import (  # noqa: F401 (fixtures)
    assert_restored,
    back_up,
    bucket,
    restore,
    view,
)

LOCATION = "s3://bucket/prefix"


def test_a_backup_holds_the_lock_that_it_took_with_a_request_whose_answer_was_lost(
    view: Path,  # noqa: F811
    bucket: S3Server,  # noqa: F811
    tmp_path: Path,
) -> None:
    bucket.unsaid = 1
    back_up(view, LOCATION)
    restore(LOCATION, tmp_path / "data")
    assert_restored(view, tmp_path / "data")
    assert f"bucket/prefix/{LOCK}" not in bucket.objects


def test_a_lock_that_is_given_back_meanwhile_is_taken(
    bucket: S3Server,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    buckets = pytest.importorskip("coordinator.backup.buckets")
    bucket.objects[f"bucket/prefix/{LOCK}"] = b"another one's"
    look = buckets.obstore.head

    def head(*arguments: object) -> object:
        bucket.objects.pop(f"bucket/prefix/{LOCK}", None)
        return look(*arguments)

    monkeypatch.setattr(buckets.obstore, "head", head)
    with open_place(LOCATION).locked():
        assert f"bucket/prefix/{LOCK}" in bucket.objects


def test_nothing_is_published_without_the_lock(bucket: S3Server) -> None:  # noqa: F811
    place = open_place(LOCATION)
    with place.locked(), pytest.raises(BackupError, match="was taken by another backup or prune"):
        del bucket.objects[f"bucket/prefix/{LOCK}"]
        place.publish("backups/1.json", b"{}")
    assert not bucket.objects


def test_large_objects_are_read_in_parts_so_that_slow_networks_keep_to_the_time_of_a_request(
    bucket: S3Server,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    buckets = pytest.importorskip("coordinator.backup.buckets")
    monkeypatch.setattr(buckets, "PART_BYTES", 1000)
    place = open_place(LOCATION)
    for size in (0, 1, 999, 1000, 1001, 3500):
        content = random.Random(size).randbytes(size)
        name = object_name(*place.put([content], {}))
        bucket.asked.clear()
        assert b"".join(place.read(name)) == content
        ranges = [asked for method, _, asked in bucket.asked if method == "GET"]
        assert ranges == [f"bytes={at}-{min(at + 1000, size) - 1}" for at in range(0, size, 1000)]


@pytest.mark.parametrize("location", ["s3://", "s3:///x", "s3://a bucket/x", "s3://b?x/y", "gs://bucket/x"])
def test_what_names_no_bucket_is_refused(bucket: S3Server, location: str) -> None:  # noqa: F811
    with pytest.raises(BackupError, match="is no place of backups"):
        open_place(location)


@pytest.mark.parametrize("location", ["s3://bucket/a//b", "s3://bucket/../b", "s3://bucket/a\tb"])
def test_a_prefix_that_no_object_can_have_is_refused_in_a_line(
    bucket: S3Server,  # noqa: F811
    location: str,
) -> None:
    with pytest.raises(BackupError, match="parse path"):
        open_place(location)


def test_a_missing_object_is_told_in_a_line(bucket: S3Server) -> None:  # noqa: F811
    with pytest.raises(FileNotFoundError, match=f"^{LOCATION}: .*404") as refusal:
        list(open_place(LOCATION).read("objects/00/00-1"))
    assert "\n" not in str(refusal.value)


def test_an_endpoint_without_tls_may_have_any_of_its_names(
    bucket: S3Server,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setenv("AWS_ENDPOINT", bucket.url)
    with open_place(LOCATION).locked():
        assert f"bucket/prefix/{LOCK}" in bucket.objects


def test_without_credentials_the_metadata_service_is_not_asked_where_that_is_off(
    bucket: S3Server,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", bucket.url)  # in no case that of a cloud
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with open_place(LOCATION).locked():
        pass
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    bucket.asked.clear()
    with pytest.raises(BackupError, match="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        open_place(LOCATION)
    assert not bucket.asked
