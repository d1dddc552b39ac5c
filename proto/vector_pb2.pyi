from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Vector(_message.Message):
    __slots__ = ("id", "attributes")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: AttributeValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[AttributeValue, _Mapping]] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    id: str
    attributes: _containers.MessageMap[str, AttributeValue]
    def __init__(self, id: _Optional[str] = ..., attributes: _Optional[_Mapping[str, AttributeValue]] = ...) -> None: ...

class AttributeValue(_message.Message):
    __slots__ = ("string_value", "int64_value", "float64_value", "bool_value", "vector_value", "array_value", "null_value")
    STRING_VALUE_FIELD_NUMBER: _ClassVar[int]
    INT64_VALUE_FIELD_NUMBER: _ClassVar[int]
    FLOAT64_VALUE_FIELD_NUMBER: _ClassVar[int]
    BOOL_VALUE_FIELD_NUMBER: _ClassVar[int]
    VECTOR_VALUE_FIELD_NUMBER: _ClassVar[int]
    ARRAY_VALUE_FIELD_NUMBER: _ClassVar[int]
    NULL_VALUE_FIELD_NUMBER: _ClassVar[int]
    string_value: str
    int64_value: int
    float64_value: float
    bool_value: bool
    vector_value: VectorValue
    array_value: ArrayValue
    null_value: _struct_pb2.NullValue
    def __init__(self, string_value: _Optional[str] = ..., int64_value: _Optional[int] = ..., float64_value: _Optional[float] = ..., bool_value: _Optional[bool] = ..., vector_value: _Optional[_Union[VectorValue, _Mapping]] = ..., array_value: _Optional[_Union[ArrayValue, _Mapping]] = ..., null_value: _Optional[_Union[_struct_pb2.NullValue, str]] = ...) -> None: ...

class ArrayValue(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[AttributeValue]
    def __init__(self, values: _Optional[_Iterable[_Union[AttributeValue, _Mapping]]] = ...) -> None: ...

class VectorValue(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class WriteRequest(_message.Message):
    __slots__ = ("upsert_vectors", "collection")
    UPSERT_VECTORS_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    upsert_vectors: _containers.RepeatedCompositeFieldContainer[Vector]
    collection: str
    def __init__(self, upsert_vectors: _Optional[_Iterable[_Union[Vector, _Mapping]]] = ..., collection: _Optional[str] = ...) -> None: ...

class UpsertVectorsResponse(_message.Message):
    __slots__ = ("status", "vectors_upserted")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VECTORS_UPSERTED_FIELD_NUMBER: _ClassVar[int]
    status: str
    vectors_upserted: int
    def __init__(self, status: _Optional[str] = ..., vectors_upserted: _Optional[int] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("ids", "collection", "filter")
    IDS_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[str]
    collection: str
    filter: Filter
    def __init__(self, ids: _Optional[_Iterable[str]] = ..., collection: _Optional[str] = ..., filter: _Optional[_Union[Filter, _Mapping]] = ...) -> None: ...

class DeleteVectorsResponse(_message.Message):
    __slots__ = ("status", "vectors_deleted", "infos")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VECTORS_DELETED_FIELD_NUMBER: _ClassVar[int]
    INFOS_FIELD_NUMBER: _ClassVar[int]
    status: str
    vectors_deleted: int
    infos: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, status: _Optional[str] = ..., vectors_deleted: _Optional[int] = ..., infos: _Optional[_Iterable[str]] = ...) -> None: ...

class UpdateRequest(_message.Message):
    __slots__ = ("ids", "collection", "filter", "set", "unset")
    class SetEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: AttributeValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[AttributeValue, _Mapping]] = ...) -> None: ...
    IDS_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    UNSET_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[str]
    collection: str
    filter: Filter
    set: _containers.MessageMap[str, AttributeValue]
    unset: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, ids: _Optional[_Iterable[str]] = ..., collection: _Optional[str] = ..., filter: _Optional[_Union[Filter, _Mapping]] = ..., set: _Optional[_Mapping[str, AttributeValue]] = ..., unset: _Optional[_Iterable[str]] = ...) -> None: ...

class UpdateVectorsResponse(_message.Message):
    __slots__ = ("status", "vectors_updated", "infos")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VECTORS_UPDATED_FIELD_NUMBER: _ClassVar[int]
    INFOS_FIELD_NUMBER: _ClassVar[int]
    status: str
    vectors_updated: int
    infos: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, status: _Optional[str] = ..., vectors_updated: _Optional[int] = ..., infos: _Optional[_Iterable[str]] = ...) -> None: ...

class SearchRequest(_message.Message):
    __slots__ = ("vector", "k", "filter", "include_fields", "vectors", "expansion", "exact", "collection", "text", "fusion", "recall", "score_threshold", "offset", "group_by", "id")
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_FIELDS_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    EXPANSION_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FUSION_FIELD_NUMBER: _ClassVar[int]
    RECALL_FIELD_NUMBER: _ClassVar[int]
    SCORE_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    GROUP_BY_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    vector: _containers.RepeatedScalarFieldContainer[float]
    k: int
    filter: Filter
    include_fields: _containers.RepeatedScalarFieldContainer[str]
    vectors: _containers.RepeatedCompositeFieldContainer[VectorValue]
    expansion: int
    exact: bool
    collection: str
    text: TextQuery
    fusion: Fusion
    recall: float
    score_threshold: float
    offset: int
    group_by: GroupBy
    id: str
    def __init__(self, vector: _Optional[_Iterable[float]] = ..., k: _Optional[int] = ..., filter: _Optional[_Union[Filter, _Mapping]] = ..., include_fields: _Optional[_Iterable[str]] = ..., vectors: _Optional[_Iterable[_Union[VectorValue, _Mapping]]] = ..., expansion: _Optional[int] = ..., exact: _Optional[bool] = ..., collection: _Optional[str] = ..., text: _Optional[_Union[TextQuery, _Mapping]] = ..., fusion: _Optional[_Union[Fusion, _Mapping]] = ..., recall: _Optional[float] = ..., score_threshold: _Optional[float] = ..., offset: _Optional[int] = ..., group_by: _Optional[_Union[GroupBy, _Mapping]] = ..., id: _Optional[str] = ...) -> None: ...

class GroupBy(_message.Message):
    __slots__ = ("field", "groups", "per_group")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    PER_GROUP_FIELD_NUMBER: _ClassVar[int]
    field: str
    groups: int
    per_group: int
    def __init__(self, field: _Optional[str] = ..., groups: _Optional[int] = ..., per_group: _Optional[int] = ...) -> None: ...

class TextQuery(_message.Message):
    __slots__ = ("field", "query", "fields", "operator", "highlight")
    class FieldsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    FIELD_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    HIGHLIGHT_FIELD_NUMBER: _ClassVar[int]
    field: str
    query: str
    fields: _containers.ScalarMap[str, float]
    operator: str
    highlight: Highlight
    def __init__(self, field: _Optional[str] = ..., query: _Optional[str] = ..., fields: _Optional[_Mapping[str, float]] = ..., operator: _Optional[str] = ..., highlight: _Optional[_Union[Highlight, _Mapping]] = ...) -> None: ...

class Highlight(_message.Message):
    __slots__ = ("fields", "pre_tag", "post_tag", "fragment_chars", "fragments", "escape_html")
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    PRE_TAG_FIELD_NUMBER: _ClassVar[int]
    POST_TAG_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_CHARS_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    ESCAPE_HTML_FIELD_NUMBER: _ClassVar[int]
    fields: _containers.RepeatedScalarFieldContainer[str]
    pre_tag: str
    post_tag: str
    fragment_chars: int
    fragments: int
    escape_html: bool
    def __init__(self, fields: _Optional[_Iterable[str]] = ..., pre_tag: _Optional[str] = ..., post_tag: _Optional[str] = ..., fragment_chars: _Optional[int] = ..., fragments: _Optional[int] = ..., escape_html: _Optional[bool] = ...) -> None: ...

class Fusion(_message.Message):
    __slots__ = ("method", "weights", "rank_constant")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    RANK_CONSTANT_FIELD_NUMBER: _ClassVar[int]
    method: str
    weights: FusionWeights
    rank_constant: float
    def __init__(self, method: _Optional[str] = ..., weights: _Optional[_Union[FusionWeights, _Mapping]] = ..., rank_constant: _Optional[float] = ...) -> None: ...

class FusionWeights(_message.Message):
    __slots__ = ("vector", "text")
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    vector: float
    text: float
    def __init__(self, vector: _Optional[float] = ..., text: _Optional[float] = ...) -> None: ...

class Filter(_message.Message):
    __slots__ = ("eq", "neq", "lt", "lte", "gt", "gte", "exists", "contains", "contains_any", "contains_all")
    EQ_FIELD_NUMBER: _ClassVar[int]
    NEQ_FIELD_NUMBER: _ClassVar[int]
    IN_FIELD_NUMBER: _ClassVar[int]
    LT_FIELD_NUMBER: _ClassVar[int]
    LTE_FIELD_NUMBER: _ClassVar[int]
    GT_FIELD_NUMBER: _ClassVar[int]
    GTE_FIELD_NUMBER: _ClassVar[int]
    AND_FIELD_NUMBER: _ClassVar[int]
    OR_FIELD_NUMBER: _ClassVar[int]
    NOT_FIELD_NUMBER: _ClassVar[int]
    EXISTS_FIELD_NUMBER: _ClassVar[int]
    CONTAINS_FIELD_NUMBER: _ClassVar[int]
    CONTAINS_ANY_FIELD_NUMBER: _ClassVar[int]
    CONTAINS_ALL_FIELD_NUMBER: _ClassVar[int]
    eq: Comparison
    neq: Comparison
    lt: Comparison
    lte: Comparison
    gt: Comparison
    gte: Comparison
    exists: Presence
    contains: Comparison
    contains_any: Membership
    contains_all: Membership
    def __init__(self, eq: _Optional[_Union[Comparison, _Mapping]] = ..., neq: _Optional[_Union[Comparison, _Mapping]] = ..., lt: _Optional[_Union[Comparison, _Mapping]] = ..., lte: _Optional[_Union[Comparison, _Mapping]] = ..., gt: _Optional[_Union[Comparison, _Mapping]] = ..., gte: _Optional[_Union[Comparison, _Mapping]] = ..., exists: _Optional[_Union[Presence, _Mapping]] = ..., contains: _Optional[_Union[Comparison, _Mapping]] = ..., contains_any: _Optional[_Union[Membership, _Mapping]] = ..., contains_all: _Optional[_Union[Membership, _Mapping]] = ..., **kwargs) -> None: ...

class Presence(_message.Message):
    __slots__ = ("field",)
    FIELD_FIELD_NUMBER: _ClassVar[int]
    field: str
    def __init__(self, field: _Optional[str] = ...) -> None: ...

class Comparison(_message.Message):
    __slots__ = ("field", "value")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    field: str
    value: AttributeValue
    def __init__(self, field: _Optional[str] = ..., value: _Optional[_Union[AttributeValue, _Mapping]] = ...) -> None: ...

class Membership(_message.Message):
    __slots__ = ("field", "values")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    field: str
    values: _containers.RepeatedCompositeFieldContainer[AttributeValue]
    def __init__(self, field: _Optional[str] = ..., values: _Optional[_Iterable[_Union[AttributeValue, _Mapping]]] = ...) -> None: ...

class Conjunction(_message.Message):
    __slots__ = ("filters",)
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    filters: _containers.RepeatedCompositeFieldContainer[Filter]
    def __init__(self, filters: _Optional[_Iterable[_Union[Filter, _Mapping]]] = ...) -> None: ...

class SearchResponse(_message.Message):
    __slots__ = ("status", "results", "warnings", "result_sets", "infos", "groups")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    RESULT_SETS_FIELD_NUMBER: _ClassVar[int]
    INFOS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    status: str
    results: _containers.RepeatedCompositeFieldContainer[SearchResult]
    warnings: _containers.RepeatedScalarFieldContainer[str]
    result_sets: _containers.RepeatedCompositeFieldContainer[ResultSet]
    infos: _containers.RepeatedScalarFieldContainer[str]
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    def __init__(self, status: _Optional[str] = ..., results: _Optional[_Iterable[_Union[SearchResult, _Mapping]]] = ..., warnings: _Optional[_Iterable[str]] = ..., result_sets: _Optional[_Iterable[_Union[ResultSet, _Mapping]]] = ..., infos: _Optional[_Iterable[str]] = ..., groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("value", "results")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    value: AttributeValue
    results: _containers.RepeatedCompositeFieldContainer[SearchResult]
    def __init__(self, value: _Optional[_Union[AttributeValue, _Mapping]] = ..., results: _Optional[_Iterable[_Union[SearchResult, _Mapping]]] = ...) -> None: ...

class ResultSet(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[SearchResult]
    def __init__(self, results: _Optional[_Iterable[_Union[SearchResult, _Mapping]]] = ...) -> None: ...

class SearchResult(_message.Message):
    __slots__ = ("score", "vector", "highlights")
    class HighlightsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Fragments
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Fragments, _Mapping]] = ...) -> None: ...
    SCORE_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    HIGHLIGHTS_FIELD_NUMBER: _ClassVar[int]
    score: float
    vector: Vector
    highlights: _containers.MessageMap[str, Fragments]
    def __init__(self, score: _Optional[float] = ..., vector: _Optional[_Union[Vector, _Mapping]] = ..., highlights: _Optional[_Mapping[str, Fragments]] = ...) -> None: ...

class Fragments(_message.Message):
    __slots__ = ("fragments",)
    FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    fragments: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, fragments: _Optional[_Iterable[str]] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("status", "vector")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    status: str
    vector: Vector
    def __init__(self, status: _Optional[str] = ..., vector: _Optional[_Union[Vector, _Mapping]] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("ids", "include_fields", "collection")
    IDS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_FIELDS_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[str]
    include_fields: _containers.RepeatedScalarFieldContainer[str]
    collection: str
    def __init__(self, ids: _Optional[_Iterable[str]] = ..., include_fields: _Optional[_Iterable[str]] = ..., collection: _Optional[str] = ...) -> None: ...

class GetManyResponse(_message.Message):
    __slots__ = ("status", "vectors", "warnings")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    status: str
    vectors: _containers.RepeatedCompositeFieldContainer[Vector]
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, status: _Optional[str] = ..., vectors: _Optional[_Iterable[_Union[Vector, _Mapping]]] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class ScrollRequest(_message.Message):
    __slots__ = ("collection", "filter", "limit", "order_by", "page_token", "include_fields")
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    ORDER_BY_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_FIELDS_FIELD_NUMBER: _ClassVar[int]
    collection: str
    filter: Filter
    limit: int
    order_by: OrderBy
    page_token: str
    include_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, collection: _Optional[str] = ..., filter: _Optional[_Union[Filter, _Mapping]] = ..., limit: _Optional[int] = ..., order_by: _Optional[_Union[OrderBy, _Mapping]] = ..., page_token: _Optional[str] = ..., include_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class OrderBy(_message.Message):
    __slots__ = ("field", "direction")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    field: str
    direction: str
    def __init__(self, field: _Optional[str] = ..., direction: _Optional[str] = ...) -> None: ...

class ScrollResponse(_message.Message):
    __slots__ = ("status", "vectors", "next_page_token", "warnings", "infos")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    INFOS_FIELD_NUMBER: _ClassVar[int]
    status: str
    vectors: _containers.RepeatedCompositeFieldContainer[Vector]
    next_page_token: str
    warnings: _containers.RepeatedScalarFieldContainer[str]
    infos: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, status: _Optional[str] = ..., vectors: _Optional[_Iterable[_Union[Vector, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., warnings: _Optional[_Iterable[str]] = ..., infos: _Optional[_Iterable[str]] = ...) -> None: ...

class CountRequest(_message.Message):
    __slots__ = ("collection", "filter")
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    collection: str
    filter: Filter
    def __init__(self, collection: _Optional[str] = ..., filter: _Optional[_Union[Filter, _Mapping]] = ...) -> None: ...

class CountResponse(_message.Message):
    __slots__ = ("status", "count", "warnings", "infos")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    INFOS_FIELD_NUMBER: _ClassVar[int]
    status: str
    count: int
    warnings: _containers.RepeatedScalarFieldContainer[str]
    infos: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, status: _Optional[str] = ..., count: _Optional[int] = ..., warnings: _Optional[_Iterable[str]] = ..., infos: _Optional[_Iterable[str]] = ...) -> None: ...

class FacetsRequest(_message.Message):
    __slots__ = ("collection", "field", "filter", "limit")
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    collection: str
    field: str
    filter: Filter
    limit: int
    def __init__(self, collection: _Optional[str] = ..., field: _Optional[str] = ..., filter: _Optional[_Union[Filter, _Mapping]] = ..., limit: _Optional[int] = ...) -> None: ...

class FacetsResponse(_message.Message):
    __slots__ = ("status", "facets", "warnings", "infos")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    FACETS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    INFOS_FIELD_NUMBER: _ClassVar[int]
    status: str
    facets: _containers.RepeatedCompositeFieldContainer[Facet]
    warnings: _containers.RepeatedScalarFieldContainer[str]
    infos: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, status: _Optional[str] = ..., facets: _Optional[_Iterable[_Union[Facet, _Mapping]]] = ..., warnings: _Optional[_Iterable[str]] = ..., infos: _Optional[_Iterable[str]] = ...) -> None: ...

class Facet(_message.Message):
    __slots__ = ("value", "count")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    value: AttributeValue
    count: int
    def __init__(self, value: _Optional[_Union[AttributeValue, _Mapping]] = ..., count: _Optional[int] = ...) -> None: ...

class MapRequest(_message.Message):
    __slots__ = ("collection", "filter", "limit", "attribute")
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTE_FIELD_NUMBER: _ClassVar[int]
    collection: str
    filter: Filter
    limit: int
    attribute: str
    def __init__(self, collection: _Optional[str] = ..., filter: _Optional[_Union[Filter, _Mapping]] = ..., limit: _Optional[int] = ..., attribute: _Optional[str] = ...) -> None: ...

class MapResponse(_message.Message):
    __slots__ = ("status", "points", "variance", "vectors", "warnings", "infos")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    VARIANCE_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    INFOS_FIELD_NUMBER: _ClassVar[int]
    status: str
    points: MapPoints
    variance: _containers.RepeatedScalarFieldContainer[float]
    vectors: int
    warnings: _containers.RepeatedScalarFieldContainer[str]
    infos: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, status: _Optional[str] = ..., points: _Optional[_Union[MapPoints, _Mapping]] = ..., variance: _Optional[_Iterable[float]] = ..., vectors: _Optional[int] = ..., warnings: _Optional[_Iterable[str]] = ..., infos: _Optional[_Iterable[str]] = ...) -> None: ...

class MapPoints(_message.Message):
    __slots__ = ("ids", "x", "y", "values")
    IDS_FIELD_NUMBER: _ClassVar[int]
    X_FIELD_NUMBER: _ClassVar[int]
    Y_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[str]
    x: _containers.RepeatedScalarFieldContainer[float]
    y: _containers.RepeatedScalarFieldContainer[float]
    values: _containers.RepeatedCompositeFieldContainer[AttributeValue]
    def __init__(self, ids: _Optional[_Iterable[str]] = ..., x: _Optional[_Iterable[float]] = ..., y: _Optional[_Iterable[float]] = ..., values: _Optional[_Iterable[_Union[AttributeValue, _Mapping]]] = ...) -> None: ...

class ErrorResponse(_message.Message):
    __slots__ = ("status", "message")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    status: str
    message: str
    def __init__(self, status: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...
