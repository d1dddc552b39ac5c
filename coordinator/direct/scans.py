"""Scans of the log whose result is a single page, served without aiohttp (coordinator/direct/requests.py).

A reader that polls a key asks for the records after its last position, and usually gets them, or none, in one page.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.api import parameters
from coordinator.api.log import answers, log_parameters
from coordinator.api.log.log_parameters import RECORD_FORM, SEQUENCES
from coordinator.api.log.scan import LIMIT_DEFAULT
from coordinator.context import Context
from coordinator.direct.plain_heads import PlainHead
from coordinator.direct.requests import JSON_HEADERS, Headers, LeftToAiohttp
from coordinator.fanout.prompt_futures import PromptFuture, PromptTask
from coordinator.http.responses import BODY_BYTES_MAX
from coordinator.limits.admission import Holder
from coordinator.log.follow import rows_of
from coordinator.log.reads import PAGE_RECORDS_FIRST, KeySelection, Warnings
from coordinator.queries.running import TEXT_MAX, RunningQuery
from shared.errors import TriptychError
from shared.messages.log_pages import Page

PATH = "/api/v1/log/scan"
PARAMETERS = frozenset(("key", "key_base64", *SEQUENCES, *RECORD_FORM, "limit"))
LIMIT_MAX = PAGE_RECORDS_FIRST
VALUES_BYTES_MAX = BODY_BYTES_MAX // 2
"""The most bytes of the values of a page. In base64 and with their other fields, usual records then take less than
BODY_BYTES_MAX."""


@dataclass(frozen=True, slots=True)
class Scan:
    """A scan of the records of one key with start ≤ number < end, as JSON in this form."""

    selection: KeySelection
    start: int
    end: int
    limit: int
    form: answers.Form

    @classmethod
    def of(cls, fields: dict[str, str]) -> Scan:
        """The scan that these parameters describe. Raises BadData."""
        start, end = log_parameters.sequences(fields)
        limit = log_parameters.whole(fields, ("limit",), LIMIT_DEFAULT, 1, LIMIT_MAX)
        return cls(log_parameters.selection(fields), start, end, limit, answers.form(fields))


@dataclass(slots=True)
class _ScanWork:
    context: Context
    scan: Scan
    summary: str
    warnings: Warnings
    listed_as: str = "log.scan"
    headers: Headers = JSON_HEADERS
    more_bytes: int = 0

    def begin(self, holder: Holder) -> PromptFuture[Page]:
        scan = self.scan
        page = self.context.log.reader.page(scan.selection, scan.start, scan.end, scan.limit, warnings=self.warnings)
        return PromptTask(page)

    def listed(self, running: RunningQuery) -> None:
        running.enter("running")

    def body(self, result: Page) -> bytes:
        records = result.records
        if not (result.done or len(records) >= self.scan.limit) or len(records.values) > VALUES_BYTES_MAX:
            raise LeftToAiohttp
        rows = answers.json_records(list(rows_of(records, self.scan.selection)), self.scan.form)
        end = answers.json_end(result.next, self.context.log.sequencer.log_start, self.warnings.texts())
        return b"".join((answers.JSON_START, rows, end))


class DirectScans:
    """For the event loop's thread only."""

    path = PATH
    is_read = True
    encoding = ""
    body_bytes_max = 0

    def __init__(self, context: Context) -> None:
        self._context = context

    def takes(self, head: PlainHead) -> bool:
        return head.method == "GET"

    def work(self, head: PlainHead, body: bytes) -> _ScanWork | None:
        """The scan; None if it is invalid, or asks for anything but one page of one key."""
        try:
            fields = parameters.first_of_each(head.query)
            if not PARAMETERS.issuperset(fields):
                return None
            scan = Scan.of(fields)
        except TriptychError:
            return None
        return _ScanWork(self._context, scan, parameters.unquoted_text(head.query.decode())[:TEXT_MAX], Warnings())
