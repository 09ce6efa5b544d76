# SPDX-License-Identifier: Apache-2.0
"""Identifiers of `comm` use the field's words (CONTRIBUTING, "Words"). The table lists words to replace.

The check reads identifiers of code, not comments or texts. A lower-case word matches any part of an identifier
(`unasked` matches `mayBeUnasked`). A word with a capital letter, or marked as whole, matches a whole identifier. A word
that ends in `(` matches the name of a function. `within` limits a word to some folders if it has other legitimate uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.lint import sources

FOLDERS = ("comm/", "tests/comm/", "tests/fuzz/")


@dataclass(frozen=True)
class Word:
    """Words to avoid, and the words to use instead. `allowed` are files that use a word in another sense."""

    old: str
    new: str
    within: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    whole: bool = False

    def covers(self, path: str) -> bool:
        folders = [name for folder in self.within for name in (f"comm/{folder}/", f"tests/comm/{folder}/")]
        return path not in self.allowed and (not folders or path.startswith(tuple(folders)))


MESSAGES, COLLECTIVES, RAILS = ("messaging",), ("collective", "plan", "schedule"), ("transport",)
WORDS = (
    # Messages.
    Word("kAnnounce kReady", "kRts, kCts"),
    Word("unasked", "eager"),
    Word("asked", "ctsReceived, rtsSent", MESSAGES),
    Word("kLargeMessageBytes", "kZeroCopyBytes"),
    Word("large medium small", "rendezvous, eager zero-copy, eager copy", MESSAGES, whole=True),
    Word("kept", "unexpected, or held", MESSAGES),
    Word("isOffered( forget(", "probe, dropCommunicator"),
    Word("kGone kCarrier carrierChanged", "kReset, kLinkState, linkChanged"),
    Word("Conversation", "Endpoint"),
    Word("Pair Sends Receives Completions ById",
         "EndpointContext, SendQueue, ReceiveQueue, CompletionQueue, MessageMap", MESSAGES),
    Word("giveBack giveBackStray letGo LetGo", "release, releasePartial, releaseUnexpected"),
    Word("take( tell( keep(", "acquire, advertise, holdUnexpected", MESSAGES),
    Word("FramedMessenger framed", "TransportMessenger"),
    Word("abandon abandoned withdraw withdrawn", "cancelReceive, cancelSend"),
    Word("pulse", "LivenessMonitor"),
    Word("kAsk AttendedTime", "kProbe, ActiveTimer"),
    Word("isPatient purpose(", "isBackground, describe"),
    # Rails.
    Word("rest( restSeconds restUntil", "coalesce", ("io", "messaging", "transport/multirail")),
    Word("striped", "MultirailTransport"),
    Word("Outstanding handBack resendLate", "InFlightFrame, reclaim, retransmitExpired"),
    Word("giveUp( judge( turn(", "markLost, checkReachability, nextRail", ("transport/multirail",)),
    Word("inbox outbox", "Receiver, Sender", RAILS),
    Word("lane lanes", "PeerConnections, SegmentSlot", (*RAILS, *COLLECTIVES)),
    Word("Reader Writer", "Receiver, Sender", RAILS),
    Word("Arrival", "AcceptedConnection"),
    Word("limitUnsent limitHeld wakeAt", "setNotSentLowat, setSendBuffer, setReceiveLowat", ("transport/tcp",)),
    Word("Vitals HeldLimit RateMeter", "TcpInfo, SendBufferLimit, RateEstimator"),
    Word("weigh( doubt(", "sampleLoad, checkStall", RAILS),
    Word("greet greeter greeting greetings", "handshake, HandshakeServer"),
    Word("stranger strangers", "unauthenticated peer"),
    Word("delaySeconds mayHear route(", "deliverySeconds, mayStillReceive, describeRoute"),
    # Waiting and finding each other.
    Word("Descriptor DescriptorRoom Listening", "FileDescriptor or CallSignature, FdReservation, PausableListener"),
    Word("fallAsleep awake(", "arm, disarm"),
    Word("Lookups Selector", "AsyncLookup, InterfaceSelector"),
    # Collectives.
    Word("piece pieces", "chunk, BufferList"),
    Word("instance instances", "segment"),
    Word("Geometry", "ChunkLayout"),
    Word("Region Slot Place", "ChunkRange, ScratchBuffer, BufferKind", COLLECTIVES),
    Word("enter( kPatience askAwaited questions", "assignSequence, kMismatchCheckAfter, sendCallHistory, ranksAhead",
         COLLECTIVES),
    Word("Notice Notices Letter", "ControlMessage, ControlMailbox, ControlTransfer"),
    Word("HostComparison Told learn(", "HostStatsExchange, HostStats, applyHostStats", COLLECTIVES),
    Word("block blockRanks onHosts", "local group, hierarchical", COLLECTIVES, whole=True),
    Word("creditBytes", "maxInFlightBytes", COLLECTIVES),
)  # fmt: skip


def parts_of(identifier: str) -> list[str]:
    """mayBeEager_ -> may, be, eager; kIPv4Tag -> k, ipv4, tag."""
    return [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])[0-9]*|[A-Z]?[a-z0-9]+", identifier)]


def violations(path: str, text: str) -> Iterator[str]:
    """Yields one sentence per identifier in `text` that is a word to avoid or contains one."""
    parts, wholes = {}, {}
    for word in (word for word in WORDS if word.covers(path)):
        for name in word.old.split():
            (parts if name.islower() and name.isalpha() and not word.whole else wholes)[name] = word.new
    for at, line in enumerate(sources.without_hidden_text(text).splitlines(), 1):
        for identifier, call in dict.fromkeys(re.findall(r"([A-Za-z_]\w*)(\(?)", line)):
            found = [parts[part] for part in parts_of(identifier) if part in parts]
            new = wholes.get(identifier.rstrip("_")) or wholes.get(identifier + call) or next(iter(found), None)
            if new is not None:
                yield f"{path}:{at}: {identifier}: say {new}"


def test_comm_speaks_as_the_field_does() -> None:
    paths = [path for path in sources.cpp_files() if path.startswith(FOLDERS)]
    found = [line for path in paths for line in violations(path, sources.read(path))]
    assert not found, "\n" + "\n".join(found)


def test_exceptions_name_files_that_exist() -> None:
    assert {path for word in WORDS for path in word.allowed} <= set(sources.tracked())


@pytest.mark.parametrize(
    ("path", "code", "is_found"),
    [
        ("comm/wire/x.h", "bool mayBeUnasked();", True),
        ("comm/wire/x.h", "bool mayBeEager();  // was unasked", False),
        ("comm/wire/x.h", 'log("a stranger");', False),
        ("comm/messaging/x.h", "uint64_t small_;", True),
        ("comm/messaging/x.h", "bool copiesSmall;", False),
        ("comm/transport/tcp/x.h", "bool hasSmallPackets;", False),
        ("comm/messaging/x.h", "bool keep(int);", True),
        ("comm/messaging/x.h", "int keepAlive;", False),
        ("comm/io/x.h", "class DescriptorRoom;", True),
        ("comm/io/x.h", "class FileDescriptor;", False),
        ("comm/wire/x.h", "reader.take<int>();", False),
        ("comm/io/x.h", "void rest(int);", True),
        ("comm/io/x.h", "auto rest = 1;", False),
        ("comm/network/x.h", "X() : route_(1) {}", False),
        ("comm/schedule/x.h", "struct Place;", True),
        ("comm/schedule/x.h", "void place();", False),
    ],
)
def test_an_identifier_is_judged_by_its_parts(path: str, code: str, is_found: bool) -> None:
    assert bool(list(violations(path, code))) is is_found
