# SPDX-License-Identifier: Apache-2.0
"""Turns a survey into sentences with remedies. A fault on all paths of one host becomes one finding about that host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from agspeed.netprobe import issues, keys
from agspeed.netprobe.issues import Issue, issues_of, key_sentence
from agspeed.netprobe.model import Survey

__all__ = ["Finding", "findings"]

_CLOCK_S = 0.1  # a larger difference puts the logs and traces of several hosts in a wrong order

_TITLES = {
    issues.CUT: "rail",
    issues.DELAY: "round trip",
    issues.KEY: "job key",
    issues.MTU: "packet size",
    issues.PACKETS: "packet size",
    issues.PORT: "port",
    issues.SLOW: "rate",
    issues.TALK: "peer",
    issues.UNPAIRED: "rail",
}
_SAME_KEY = (
    "give all hosts the same key: copy one job.key to all, chmod 600 job.key, export AGSPEED_JOB_KEY_FILE=$PWD/job.key"
)


class Finding(NamedTuple):
    """A line of the doctor's output. The status is ok, warn (works, but worse) or fail (does not work)."""

    name: str
    status: str
    detail: str
    remedy: str = ""


class _Group(NamedTuple):
    """Issues of one kind with one cause: a host's rail, a host, or a pair of hosts."""

    kind: str
    where: str
    about: list[Issue]
    culprit: tuple[str, str] | None  # host, rail


def findings(survey: Survey) -> list[Finding]:
    """All faults, the worst first. Without a fault that fails, a last line says that the hosts reach each other."""
    found = [Finding("peer", "fail", f"{peer} {why}", survey.how_to_join) for peer, why in survey.silent.items()]
    for (host, peer), equality in survey.keys.items():
        found.append(Finding("job key", "fail", f"{host} and {peer}: {key_sentence(equality)}", _SAME_KEY))
    all_issues = issues_of(survey)
    groups = [group for kind in _TITLES for group in _grouped(survey, [i for i in all_issues if i.kind == kind])]
    found += [_finding(survey, group, all_issues) for group in groups]
    found += _clocks(survey)
    if any(finding.status == "fail" for finding in found):
        return sorted(found, key=lambda finding: finding.status != "fail")
    return [*found, *_all_is_well(survey)]


def _grouped(survey: Survey, about: Sequence[Issue]) -> Iterator[_Group]:
    """Groups issues of one kind by their cause.

    If all paths of a rail with several neighbours have the issue, the rail is the cause (for the job key: the host).
    """
    left = list(about)
    while left:
        kind, culprit = left[0].kind, _culprit(survey, left)
        if culprit is None:
            mine = [issue for issue in left if _is_like(issue, left[0])]
            where = _between(mine)
        else:
            host, rail = culprit
            mine = [issue for issue in left if _is_at(issue, culprit)]
            where = f"{host} and every other host" if kind == issues.KEY else f"{rail} of {host}, with every other host"
        yield _Group(kind, where, mine, culprit)
        left = [issue for issue in left if issue not in mine]


def _is_like(issue: Issue, other: Issue) -> bool:
    """Whether both issues are between the same two rails, or for the job key, between the same two hosts."""
    are_same_hosts = {issue.source, issue.destination} == {other.source, other.destination}
    return issue.ends == other.ends or (issue.kind == issues.KEY and are_same_hosts)


def _is_at(issue: Issue, culprit: tuple[str, str]) -> bool:
    is_of_host = culprit[0] in (issue.source, issue.destination)
    return culprit in issue.ends or (issue.kind == issues.KEY and is_of_host)


def _culprit(survey: Survey, about: Sequence[Issue]) -> tuple[str, str] | None:
    """The (host, rail) that has the issue with all of its neighbours, if they are several; the one with the most."""
    best: tuple[str, str] | None = None
    most = 1
    for end in sorted({end for issue in about for end in issue.ends}):
        neighbours = _neighbours(survey, about[0].kind, end)
        affected = {host for issue in about if end in issue.ends for host, _ in issue.ends} - {end[0]}
        if affected >= neighbours and len(affected) > most:
            best, most = end, len(affected)
    return best


def _neighbours(survey: Survey, kind: str, end: tuple[str, str]) -> set[str]:
    """The hosts for which it is known whether their path to or from this rail has such an issue."""
    judged = [path for path in survey.paths if issues.is_judged(path, kind)]
    there = {path.destination for path in judged if (path.source, path.rail) == end}
    return there | {path.source for path in judged if (path.destination, path.remote_rail) == end}


def _between(about: Sequence[Issue]) -> str:
    one = about[0]
    if one.kind == issues.KEY:
        return f"{one.source} and {one.destination}"
    is_one_way = all(issue.source == one.source for issue in about)
    if one.rail != one.remote_rail:
        return f"{one.rail} of {one.source} {'to' if is_one_way else 'and'} {one.remote_rail} of {one.destination}"
    if is_one_way:
        return f"{one.rail} from {one.source} to {one.destination}"
    return f"{one.rail} between {one.source} and {one.destination}"


def _finding(survey: Survey, group: _Group, all_issues: Sequence[Issue]) -> Finding:
    details = list(dict.fromkeys(issue.detail for issue in group.about))
    if len(details) > 1:
        details = [f"{issue.source} to {issue.destination}: {issue.detail}" for issue in group.about]
    shown = "; ".join(details[:2]) + (f"; and so on, {len(details)} in all" if len(details) > 2 else "")
    status = "fail" if group.kind in issues.FAILS else "warn"
    return Finding(_TITLES[group.kind], status, f"{group.where}: {shown}", _remedy(survey, group, all_issues))


def _remedy(survey: Survey, group: _Group, all_issues: Sequence[Issue]) -> str:
    issue = group.about[0]
    rail, host = issue.remote_rail, issue.destination
    if group.culprit is not None:
        host, rail = group.culprit
    if group.kind == issues.KEY:
        return _SAME_KEY
    if group.kind == issues.PORT:
        return (
            f"let TCP pass between these hosts at all ports from 1024 on, in the firewall of {host} and on the way: "
            "ranks listen at ports that the system chooses"
        )
    if group.kind == issues.PACKETS:
        return (
            f"let the switches and tunnels of {rail} carry packets of the interfaces' size, or on all hosts "
            f"`ip link set dev {rail} mtu {_arriving(survey, group)}`"
        )
    if group.kind == issues.MTU:
        return f"on all hosts set the same with `ip link set dev {rail} mtu N`, the largest that the switches carry"
    if group.kind == issues.TALK:
        return f"check the processes and the load of {host}; then run the doctor again"
    if group.kind == issues.DELAY:
        return f"see how busy {host} is and which way the packets take (`ip route get`)"
    leave_out = _leave_out(survey, all_issues)
    if group.kind == issues.SLOW:
        return f"check speed and errors of {rail} on {host} (`ethtool {rail}`, `ip -s link show {rail}`)"
    if group.kind == issues.UNPAIRED:
        return f"connect {rail} of {host} and `ip link set dev {rail} up`{leave_out}"
    return f"check cable, switch port, VLAN and firewall of {rail} on {host}{leave_out}"


def _arriving(survey: Survey, group: _Group) -> int:
    ways = {(issue.source, issue.destination, issue.rail) for issue in group.about}
    return min(p.packet_bytes or 0 for p in survey.paths if (p.source, p.destination, p.rail) in ways)


def _leave_out(survey: Survey, all_issues: Iterable[Issue]) -> str:
    """How to continue with the rails that all hosts have and that have no fault; empty if there are none."""
    fails = [issue for issue in all_issues if issue.kind in issues.FAILS and issue.kind != issues.KEY]
    broken = {rail for issue in fails for _, rail in issue.ends}
    on_all = set.intersection(*({rail.name for rail in host.rails} for host in survey.hosts))
    good = [rail.name for rail in survey.hosts[0].rails if rail.name in on_all - broken]
    return f"; until then on all hosts export AGSPEED_SOCKET_IFNAME={','.join(good)}" if good else ""


def _clocks(survey: Survey) -> Iterator[Finding]:
    seen: set[frozenset[str]] = set()
    for path in survey.paths:
        pair = frozenset((path.source, path.destination))
        if path.clock_ahead_s is None or path.round_trip_s is None or pair in seen:
            continue
        seen.add(pair)
        ahead = path.clock_ahead_s
        if abs(ahead) - path.round_trip_s / 2 > _CLOCK_S:
            how = "ahead of" if ahead > 0 else "behind"
            detail = f"that of {path.destination} is {abs(ahead):.1f} s {how} that of {path.source}"
            remedy = "run chrony or ntpd on all hosts; traces and logs of several ranks do not fit together otherwise"
            yield Finding("clock", "warn", detail, remedy)


def _all_is_well(survey: Survey) -> Iterator[Finding]:
    if survey.paths:
        pairs = {frozenset((path.source, path.destination)) for path in survey.paths}
        rails = len({path.rail for path in survey.paths})
        has_keys = any(path.key == keys.EQUAL for path in survey.paths)
        how = "with equal job keys" if has_keys else "without job keys"
        yield Finding("pairs", "ok", f"{len(pairs)} of hosts reach each other over {rails} rails, {how}")
