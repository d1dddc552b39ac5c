"""What the handlers of all areas share."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from coordinator.access.gatekeeper import Gatekeeper
from coordinator.backup.views import Views
from coordinator.fanout.links import Links
from coordinator.headers.cors import Cors
from coordinator.headers.cross_site import CrossSite
from coordinator.limits.admission import Admission
from coordinator.limits.connections import Connections, connections_max
from coordinator.limits.decoding import Decodings
from coordinator.limits.pressure import Pressure
from coordinator.limits.spool import Spool
from coordinator.limits.waiting_room import WaitingRoom
from coordinator.log.area import LogArea
from coordinator.otlp.known_sets import KnownSets
from coordinator.otlp.label_sets import Translation
from coordinator.prometheus_config.config_file import ConfigFile
from coordinator.queries.cost import Costs
from coordinator.queries.gate import Gate
from coordinator.queries.running import RunningQueries
from coordinator.queries.slow import SlowQueries
from coordinator.queries.whereabouts import Whereabouts
from coordinator.rules.notifying import Notifier
from coordinator.rules.schedule import Rules
from coordinator.rules.storage import RuleStorage
from coordinator.scraping.scraper import Scraper
from coordinator.scraping.storing import ScrapeStore
from coordinator.series.groups import SampleWrites
from coordinator.series.known_labels import KnownLabels
from coordinator.series.metadata import KnownMetadata
from coordinator.series.metric_types import MetricTypes
from coordinator.series.request_templates import RequestTemplates
from coordinator.series.series_references import SeriesReferences
from coordinator.vectors.area import VectorArea
from coordinator.watching.self_scrape import SelfScrape
from coordinator.watching.telemetry import Telemetry
from coordinator.watching.watch import Watch
from shared.settings import Settings


@dataclass(slots=True)
class Context:
    settings: Settings
    links: Links
    telemetry: Telemetry
    log: LogArea
    vectors: VectorArea
    samples: SampleWrites
    gate: Gate
    access: Gatekeeper = field(default_factory=lambda: Gatekeeper(Settings()))
    costs: Costs = field(default_factory=Costs)
    whereabouts: Whereabouts = field(default_factory=Whereabouts)
    started_at: float = field(default_factory=time.time)
    decodings: Decodings = field(default_factory=Decodings)
    known_metadata: KnownMetadata = field(default_factory=KnownMetadata)
    metric_types: MetricTypes = field(init=False)
    known_labels: KnownLabels = field(init=False)
    known_sets: KnownSets = field(init=False)
    otlp_translation: Translation = field(init=False)
    series_references: SeriesReferences = field(init=False)
    request_templates: RequestTemplates = field(init=False)
    admission: Admission = field(init=False)
    connections: Connections = field(init=False)
    pressure: Pressure = field(init=False)
    waiting_room: WaitingRoom = field(init=False)
    spool: Spool = field(init=False)
    views: Views = field(init=False)
    watch: Watch = field(init=False)
    cross_site: CrossSite = field(init=False)
    cors: Cors = field(init=False)
    running: RunningQueries = field(init=False)
    slow: SlowQueries = field(init=False)
    config_file: ConfigFile = field(init=False)
    rules: Rules = field(init=False)
    scraper: Scraper = field(init=False)
    self_scrape: SelfScrape | None = None
    """None until the service listens."""

    def __post_init__(self) -> None:
        self.cross_site = CrossSite(self.settings)
        self.cors = Cors(self.settings)
        self.metric_types = MetricTypes(self.links)
        self.known_labels = KnownLabels(self.settings.known_labels_bytes)
        self.known_sets = KnownSets(self.settings.known_labels_bytes)
        self.otlp_translation = Translation.of(self.settings)
        self.series_references = SeriesReferences(self.settings.series_references_bytes, self.settings.shard_count())
        self.request_templates = RequestTemplates(self.settings.request_templates_bytes, self.series_references)
        self.admission = Admission(self.settings)
        self.connections = Connections(self.settings, self.admission, connections_max(self.settings))
        self.admission.heavy_requests = self.gate.heavy_queries
        self.pressure = Pressure(
            self.settings,
            self.admission,
            (self.links.waits, self.gate.waits),
            self.links.pause_background,
        )
        self.gate.restraint = self.pressure
        self.waiting_room = WaitingRoom(self.pressure)
        self.pressure.waiting, self.pressure.looked = self.waiting_room.__len__, self.waiting_room.look
        self.pressure.queue = self.waiting_room.queue
        self.pressure.hardness = self.waiting_room.hardness
        self.admission.freed = self.waiting_room.admit_soon
        self.spool = Spool(self.settings.data, self.settings.spool_bytes_max, self.connections.end_slowest)
        self.watch = Watch(self.telemetry, self.links, self.settings.data)
        shows_texts = self.settings.query_texts
        self.slow = SlowQueries(self.settings.slow_query_ms / 1000, shows_texts=shows_texts)
        prometheus_config = self.settings.prometheus_config
        self.config_file = ConfigFile(Path(prometheus_config) if prometheus_config else None)
        self.running = RunningQueries(shows_texts=shows_texts, ended=self.slow.ended)
        storage = RuleStorage(
            self.settings,
            self.links,
            self.gate,
            self.costs,
            self.whereabouts,
            self.running,
            self.samples,
            self.pressure,
        )
        self.rules = Rules(storage, Notifier(), self.settings.external_url.rstrip("/"))
        self.config_file.parts.append(self.rules)
        store = ScrapeStore(self.settings, self.links, self.samples, self.series_references, self.pressure)
        self.scraper = Scraper(store, self.settings)
        self.config_file.parts.append(self.scraper)


CONTEXT = web.AppKey("context", Context)
