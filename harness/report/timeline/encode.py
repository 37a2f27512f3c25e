"""Process tracks as the bytes that templates/report/timeline.js reads: a JSON head, then columns as planes of bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from isal import igzip
from numpy.typing import NDArray

from harness.analysis.labels import cause_word
from harness.analysis.process.host_calls import HostCause
from harness.common.display.format import percent
from harness.measure.page_data import KINDS, ProcessTrack
from harness.traces.trace import I64

MOST_BYTES = 2_600_000  # compressed; with Plotly's 1.5 MB and in base64 about 5.6 MB of page
_LARGEST = 2**32 - 1


def pack(tracks: Sequence[ProcessTrack], offsets_ns: Mapping[str, int], notes: Sequence[str] = ()) -> bytes:
    """All tracks on one time axis that begins at 0 with the earliest window. offsets_ns: how far a clock is ahead. If
    the tracks' clocks cannot be compared, each track begins at 0, and a note says so."""
    origins, remark = _origins(tracks, offsets_ns)
    unit_ns = _unit(tracks)
    texts: dict[str, int] = {}
    head: dict[str, Any] = {
        "unit_ns": unit_ns,
        "kinds": list(map(list, KINDS.items())),
        "causes": [[cause.label, cause.color] for cause in HostCause],
        "notes": [*notes, *remark, *(note for track in tracks for note in track.notes)],
        "strips": [_head(track, origin, unit_ns) for track, origin in zip(tracks, origins, strict=True)],
    }
    columns = [_columns(track, origin, unit_ns, texts) for track, origin in zip(tracks, origins, strict=True)]
    head["texts"] = list(texts)
    start, length, text, code = (np.concatenate(c) for c in zip(*columns, strict=True))
    body = b"".join(_planes(c) for c in (start, length, text)) + code.astype(np.uint8).tobytes()
    words = json.dumps(head, ensure_ascii=False).encode("utf-8", "replace")
    return len(words).to_bytes(4, "little") + words + body


def pack_to_fit(
    tracks: Sequence[ProcessTrack], offsets_ns: Mapping[str, int], notes: Sequence[str], most_bytes: int = MOST_BYTES
) -> bytes:
    """As `pack`, with at most `most_bytes` after compression: the end of the tracks is cut off."""
    packed = pack(tracks, offsets_ns, notes)
    share = 1.0
    while len(packed) > most_bytes and (size := len(igzip.compress(packed, 3))) > most_bytes:
        share *= min(0.9 * most_bytes / size, 0.8)
        cut = [_shorter(track, share) for track in tracks]
        remark = f"only the first {percent(share)} of these steps is shown, because the page would be too large to send"
        packed = pack(cut, offsets_ns, [*notes, remark])
    return packed


def _shorter(track: ProcessTrack, share: float) -> ProcessTrack:
    begin, end = track.window[0], track.window[0] + max(int(share * (track.window[1] - track.window[0])), 1)
    return replace(
        track,
        lanes=[lane.cut(slice(int(np.searchsorted(lane.start_ns, end)))) for lane in track.lanes],
        steps=[step for step in track.steps if step[1] < end],
        window=(begin, end),
    )


def _origins(tracks: Sequence[ProcessTrack], offsets_ns: Mapping[str, int]) -> tuple[list[int], list[str]]:
    """The zero of each track's times, and a remark if clocks cannot be compared."""
    if len(tracks) > 1 and any(track.epoch_ns is None for track in tracks):
        remark = "the ranks' clocks cannot be compared: the time of each rank begins with its first shown step"
        return [track.window[0] for track in tracks], [remark]
    shifts = [offsets_ns.get(track.clock, 0) - (track.epoch_ns or 0) for track in tracks]
    begin = min(track.window[0] - shift for track, shift in zip(tracks, shifts, strict=True))
    return [begin + shift for shift in shifts], []


def _unit(tracks: Sequence[ProcessTrack]) -> int:
    """Nanoseconds per tick: 1, unless a window is too long for 32 bits."""
    longest = max(track.window[1] - track.window[0] for track in tracks)
    unit = 1
    while 2 * longest // unit > _LARGEST:
        unit *= 2
    return unit


def _head(track: ProcessTrack, origin: int, unit_ns: int) -> dict[str, Any]:
    def at(moment_ns: int) -> int:
        return (moment_ns - origin) // unit_ns

    return {
        "rank": track.rank,
        "host": track.host,
        "path": track.path,
        "origin_ns": str(origin),  # a number of JavaScript has 53 bits
        "window": [at(track.window[0]), at(track.window[1])],
        "steps": [[name, at(start), at(end)] for name, start, end in track.steps],
        "lanes": [
            {"group": lane.group, "label": lane.label, "device": lane.device, "n": len(lane)} for lane in track.lanes
        ],
        "begin": at(track.window[0]),
        "causes": [cause_word(cause.label, track.cpu) for cause in HostCause],
    }


def _columns(
    track: ProcessTrack, origin: int, unit_ns: int, texts: dict[str, int]
) -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint8]]:
    """Starts as differences, lengths, texts and codes of all lanes, one after another. Each lane's first difference
    counts from the track's window. What began before the window or ends after it is cut to it."""
    low, high = track.window
    starts: list[I64] = []
    lengths: list[I64] = []
    for lane in track.lanes:
        start = (np.clip(lane.start_ns, low, high) - origin) // unit_ns
        end = (np.clip(lane.end_ns, low, high) - origin) // unit_ns
        starts.append(np.diff(start, prepend=(low - origin) // unit_ns))
        lengths.append(end - start)
    if not starts:
        empty = np.empty(0, np.uint32)
        return empty, empty, empty, np.empty(0, np.uint8)
    text = np.concatenate([lane.text for lane in track.lanes])
    table = np.zeros(len(track.texts), np.uint32)
    for used in np.unique(text).tolist():
        table[used] = texts.setdefault(track.texts[used], len(texts))
    return (
        np.concatenate(starts).astype(np.uint32),
        np.concatenate(lengths).astype(np.uint32),
        table[text],
        np.concatenate([lane.code for lane in track.lanes]),
    )


def _planes(column: NDArray[np.uint32]) -> bytes:
    """All lowest bytes, then all second bytes …, so that similar bytes are neighbours."""
    return np.ascontiguousarray(column.astype("<u4").view(np.uint8).reshape(-1, 4).T).tobytes()
