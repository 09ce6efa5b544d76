# SPDX-License-Identifier: Apache-2.0
"""Lists of hosts, host files, and which rank runs where."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agspeed.errors import UserError
from agspeed.launch import hosts
from agspeed.launch.description import Description, address_of_first
from agspeed.launch.hosts import Host
from agspeed.launch.placement import place, variables

NAMES = st.from_regex(r"([a-z][a-z0-9]{0,5}@)?[a-z0-9][a-z0-9.-]{0,12}", fullmatch=True)
LISTS = st.lists(st.tuples(NAMES, st.integers(1, hosts.MOST_SLOTS)), min_size=1, max_size=6, unique_by=lambda it: it[0])
HOSTS = LISTS.map(lambda pairs: [Host(*pair) for pair in pairs]).filter(
    lambda found: sum(host.is_local for host in found) <= 1
)


def read(folder: Path, text: str) -> tuple[Host, ...]:
    path = folder / "hosts"
    path.write_text(text)
    return hosts.read(path)


@given(HOSTS)
def test_a_list_that_is_written_is_read_again(found: list[Host]) -> None:
    assert list(hosts.parse(",".join(f"{host.name}:{host.slots}" for host in found))) == found


@given(HOSTS, st.data())
def test_a_file_in_any_of_its_forms_is_read_again(found: list[Host], data: st.DataObject) -> None:
    forms = ("{0} slots={1}", "{0}\tslots={1} max_slots=9", "  {0} max-slots=9 slots={1}  # words", "{0}:{1}")
    lines = []
    for host in found:
        lines += data.draw(st.lists(st.sampled_from(["", "   ", "# node9 slots=3"]), max_size=2))
        lines.append(data.draw(st.sampled_from(forms)).format(host.name, host.slots))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", lambda *_: __import__("io").BytesIO("\n".join(lines).encode()))
        assert list(hosts.read(Path("any"))) == found


@given(st.text(max_size=30))
def test_any_text_is_a_list_of_safe_names_or_a_mistake_of_the_user(text: str) -> None:
    try:
        found = hosts.parse(text)
    except UserError:
        return
    for host in found:
        assert not host.name.startswith("-") and not set(host.name) & set(" \t\n;&|$`'\"\\<>(){}*?[]!")
        assert 1 <= host.slots <= hosts.MOST_SLOTS


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "'' is not a host with slots"),
        ("node0", "'node0' is not a host with slots. Invalid host input, please make sure it has format as"),
        ("node0:", "'node0:' is not a host"),
        ("node0:2,", "'' is not a host"),
        ("node0:two", "'node0:two' is not a host"),
        ("node0:-1", "'node0:-1' is not a host"),
        ("node0:0", "node0 has 0 slots; write how many ranks it may run, 1 to 4096"),
        ("node0:99999", "node0 has 99999 slots"),
        ("-oProxyCommand=x:2", "'-oProxyCommand=x:2' is not a host"),
        ("node0;x:2", "'node0;x:2' is not a host"),
        ("root@-x:2", "'root@-x:2' is not a host"),
        ("node0:2,node1:2,node0:1", "node0 is named twice; write it once"),
        ("localhost:2,127.0.0.1:1", "127.0.0.1 is named twice, first as localhost"),
        (f"localhost:2,{socket.gethostname()}:1", "is named twice, first as localhost"),
    ],
)
def test_a_wrong_list_says_what_is_wrong(text: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        hosts.parse(text)
    assert str(caught.value).startswith(f"--hosts {text}: ") and sentence in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        ("node0 slots=2\nnode1\n", 2, "node1 has no slots; write how many ranks it may run: node1 slots=4."),
        ("\n# all\nnode0 slots=0", 3, "node0 has 0 slots"),
        ("node0 slots=", 1, "'node0:' is not a host"),
        ("node0 slots=x", 1, "'node0:x' is not a host with slots; write a host and its slots, such as node0 slots=4."),
        ("node0 slots=2 slots=3", 1, "node0 has two numbers of slots"),
        ("node0:2 slots=2", 1, "node0:2 has two numbers of slots"),
        ("node0 slots=2 cpu=3", 1, "'cpu=3' is unknown"),
        ("node0 2", 1, "'2' is unknown"),
        ("node0 slots=2\nnode1 slots=2\nnode0 slots=2", 3, "node0 is named twice"),
    ],
)
def test_a_wrong_file_says_which_line(text: str, line: int, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(f"--hostfile {tmp_path}/hosts, line {line}: ") and sentence in str(caught.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"# none\n", "names no host"),
        (b"\xff\xfe", "is not text"),
        (b"#" * (1 << 20) + b"\nnode0 slots=1", "is longer than"),
    ],
)
def test_a_file_that_is_none_is_refused(content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        hosts.read(path)


@given(HOSTS, st.data())
def test_every_rank_runs_once_on_a_host_with_a_slot_for_it(found: list[Host], data: st.DataObject) -> None:
    num_ranks = data.draw(st.integers(1, sum(host.slots for host in found)))
    shares = place(found, num_ranks)
    assert [rank for share in shares for rank in share.ranks] == list(range(num_ranks))
    assert all(1 <= len(share.ranks) <= share.host.slots for share in shares)


def test_ranks_know_their_place_as_horovods_do() -> None:
    shares = place([Host("a", 3), Host("u@b", 1), Host("c", 3)], 6)
    of = [variables(shares, rank, "10.0.0.1", 29500) for rank in range(6)]
    names = "HOSTNAME LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE"
    assert [" ".join(each[f"HOROVOD_{name}"] for name in names.split()) for each in of] == [
        "a 0 3 0 3",
        "a 1 3 0 2",
        "a 2 3 0 1",
        "b 0 1 1 3",
        "c 0 2 2 3",
        "c 1 2 1 2",
    ]
    assert {(each["WORLD_SIZE"], each["MASTER_ADDR"], each["MASTER_PORT"]) for each in of} == {
        ("6", "10.0.0.1", "29500")
    }


@pytest.mark.parametrize(
    ("names", "addresses", "expected"),
    [
        (["a"], [("10.0.0.1", "10.0.0.9")], "127.0.0.1"),
        (["a", "b"], [("10.0.0.1", "10.0.0.9"), ("10.0.0.2", "10.0.0.9")], "10.0.0.1"),
        (["localhost", "b"], [("10.9.9.9", "10.8.8.8"), ("10.0.0.2", "10.0.0.9")], "10.0.0.9"),
        (["a", "b"], [("127.0.1.1", "127.0.0.1"), ("10.0.0.2", "10.0.0.1")], "10.0.0.1"),
        (["a", "b"], [("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "127.0.0.1")], "127.0.0.1"),
        (["a", "b"], [("", ""), ("10.0.0.2", "10.0.0.1")], None),
        (["a", "b"], [("fe80::1%eth0", "fe80::2%eth0"), ("10.0.0.2", "10.0.0.1")], None),
        (["localhost", "b"], [("", ""), ("", "")], None),
    ],
)
def test_ranks_meet_at_an_address_that_other_hosts_reach(
    names: list[str], addresses: list[tuple[str, str]], expected: str | None
) -> None:
    shares = place([Host(name, 1) for name in names], len(names))
    rest = {"version": "", "folder": "", "port": 1}
    described = [Description.of({**rest, "address": own, "launcher_address": other}) for own, other in addresses]
    if expected is not None:
        assert address_of_first(shares, described) == expected
        return
    with pytest.raises(UserError, match="does not know by which address other hosts"):
        address_of_first(shares, described)
