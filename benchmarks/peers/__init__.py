"""Peers as they are on the package index: a file each, with what drives them and the ways in which they are run.

Every peer is driven at its reducer, with messages of its own that are ready before the clock starts, and with a counter
that counts as the floor does where it takes one. None of them is run where a turn would take more than a few seconds.
"""

from benchmarks.peers import (
    ag2,
    agent_framework,
    agentscope,
    autogen,
    haystack,
    langchain,
    llama_index,
    packers,
    pydantic_ai,
)
from benchmarks.peers.peer import Peer

PEERS: tuple[Peer, ...] = (
    *langchain.PEERS,
    *ag2.PEERS,
    *autogen.PEERS,
    *llama_index.PEERS,
    *pydantic_ai.PEERS,
    *agent_framework.PEERS,
    *haystack.PEERS,
    *agentscope.PEERS,
    *packers.PEERS,
)
