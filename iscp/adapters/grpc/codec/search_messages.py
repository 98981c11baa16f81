"""Searches of indexes, and their answers, as messages."""

from __future__ import annotations

from iscp.adapters.grpc.codec.json_objects import json_object, object_json
from iscp.adapters.grpc.codec.message_codec import to_message
from iscp.adapters.tls.endpoint import FORMAT_VERSION
from iscp.core.api.search_views import SearchAnswer, SearchHit, SearchRequest, SearchWeights
from iscp.wire.v1 import search_pb2 as pb

K_DEFAULT = 10
"""Hits of a search whose request says no number."""


def search_to_wire(request: SearchRequest, account: str) -> pb.SearchRequest:
    """Return the message, for an account (empty: the caller's own). Raises InvalidRequest for what has no place in it.

    The wait for a version is left out, which is that of the call.
    """
    return to_message(
        pb.SearchRequest,
        format_version=FORMAT_VERSION,
        uri=request.uri,
        account=account,
        text=request.text,
        vector=list(request.vector),
        k=request.k,
        filter=request.filter,
        columns=None if request.columns is None else to_message(pb.SearchColumns, names=list(request.columns)),
        min_version=request.min_version,
        highlight=request.highlight,
        explain=request.explain,
        weights=to_message(pb.SearchWeights, text=request.weights.text, vector=request.weights.vector),
    )


def search_from_wire(message: pb.SearchRequest, wait_s: float) -> SearchRequest:
    """Return the search, which waits for a version up to `wait_s`. Raises InvalidRequest for what is out of bounds."""
    weights = SearchWeights(message.weights.text, message.weights.vector) if message.HasField("weights") else None
    return SearchRequest(
        uri=message.uri,
        text=message.text,
        vector=tuple(message.vector),
        k=message.k or K_DEFAULT,
        filter=message.filter,
        columns=tuple(message.columns.names) if message.HasField("columns") else None,
        min_version=message.min_version if message.HasField("min_version") else None,
        wait_s=wait_s,
        highlight=message.highlight,
        explain=message.explain,
        weights=weights or SearchWeights(),
    )


def answer_to_wire(answer: SearchAnswer) -> pb.SearchAnswer:
    return pb.SearchAnswer(
        hits=map(_hit_to_wire, answer.hits),
        version=answer.version,
        version_at_s=answer.version_at_s,
        index_version=answer.index_version,
        proven=answer.proven,
        cut=answer.cut,
        took_ms=answer.took_ms,
        waited_ms=answer.waited_ms,
    )


def answer_from_wire(message: pb.SearchAnswer) -> SearchAnswer:
    """Return the answer, its keys and columns as JSON has them. Raises PermanentError for JSON that is none."""
    return SearchAnswer(
        hits=tuple(map(_hit_from_wire, message.hits)),
        version=message.version,
        version_at_s=message.version_at_s,
        index_version=message.index_version,
        proven=message.proven,
        cut=tuple(message.cut),
        took_ms=message.took_ms,
        waited_ms=message.waited_ms,
    )


def _hit_to_wire(hit: SearchHit) -> pb.SearchHit:
    return pb.SearchHit(
        key_json=object_json(hit.key),
        score=hit.score,
        columns_json=object_json(hit.columns),
        highlights={name: pb.SearchFragments(texts=texts) for name, texts in hit.highlights.items()},
        explanation=hit.explanation,
    )


def _hit_from_wire(message: pb.SearchHit) -> SearchHit:
    return SearchHit(
        key=json_object(message.key_json),
        score=message.score,
        columns=json_object(message.columns_json),
        highlights={name: tuple(each.texts) for name, each in message.highlights.items()},
        explanation=message.explanation,
    )
