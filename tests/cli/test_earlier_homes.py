"""This version opens the data folders of every version before it, as scripts/record-homes recorded them (tests/corpora/homes)."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from swarm.swarm import PASSWORD

from node.contributor import submission_log
from node.contributor.settings import NodeSettings
from node.contributor.submission_log import SubmissionLog
from node.relay.service import RelaySettings
from node.validator.judgement_log import JudgementLog
from node.validator.receipt_log import ReceiptLog
from node.validator.settings import ValidatorSettings
from protocol.chain.book_schema import connect as open_book
from protocol.chain.transaction_log import TransactionLog
from protocol.chain.view import View
from protocol.errors import IntegrityError
from protocol.identity import load_keystore
from protocol.p2p import peers
from protocol.settings import load
from protocol.shell import spec_file
from protocol.shell.home import PEERS, Home
from protocol.shell.peers import BootnodeSettings
from protocol.signing import Domain
from protocol.verdict import Receipt
from tests.cli.conftest import Console
from trainer.hub.catalogue import Packs
from trainer.hub.database import Database

SETTINGS = {"node": NodeSettings, "validator": ValidatorSettings, "relay": RelaySettings, "bootnode": BootnodeSettings}
RECORDED = Path(__file__).parents[1] / "corpora/homes"
VERSIONS = sorted(folder.name for folder in RECORDED.iterdir())


@dataclass(frozen=True)
class Disk:
    """The homes of all roles, each database made of its SQL."""

    folder: Path
    rows: dict[str, dict[str, int]]
    """What was recorded: rows by database (its path from here) and table."""

    @property
    def domain(self) -> Domain:
        chain = load(NodeSettings, self.folder / "node/node.toml").value.chain
        return Domain(chain.chain_id, chain.contract)

    def ids(self, database: str, table: str) -> list[bytes]:
        """Of the submissions in a table."""
        with closing(sqlite3.connect(self.folder / f"{database}.sqlite")) as opened:
            return [id for (id,) in opened.execute(f"SELECT DISTINCT submission FROM {table}")]


@pytest.fixture(params=VERSIONS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    folder = tmp_path / "homes"
    shutil.copytree(RECORDED / request.param, folder)
    rows = {}
    for file in folder.rglob("*.sql"):
        with closing(sqlite3.connect(file.with_suffix(".sqlite"))) as database:
            database.executescript(file.read_text())
            tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            rows[str(file.relative_to(folder).with_suffix(""))] = {
                table: database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables
            }
        file.unlink()
    for file in folder.glob("*/keys/*.json"):
        file.chmod(0o600)  # git keeps no modes
    return Disk(folder, rows)


def test_a_node_still_tells_of_its_work_and_goes_on(disk: Disk, console: Console) -> None:
    home = disk.folder / "node"
    told = console.node("submissions", "--json", "--most", 1000, "--home", home).json["submissions"]
    assert len(told) == disk.rows["node/data/submissions"]["submissions"] > 0
    assert any(one["receipt"] for one in told) and any(one["storage"] for one in told)
    assert console.node("config", "show", "--home", home).code == 0
    with closing(SubmissionLog(home / "data" / submission_log.FILE)) as log:
        log.advance(log.all()[0].id, submission_log.HARD)
        assert log.all()[0].state == submission_log.HARD


def test_a_validator_still_knows_what_it_judged_and_what_it_heard(disk: Disk) -> None:
    data, domain = disk.folder / "validator/data", disk.domain
    judged = disk.ids("validator/data/judgements", "judgements")
    with closing(JudgementLog(data / "judgements.sqlite")) as log:
        known = [found for found in map(log.get, judged) if found]
        assert len(known) == len(judged) > 0
        log.put(*known)
    heard = disk.ids("validator/data/receipts", "receipts")
    with closing(ReceiptLog(data / "receipts.sqlite", lambda each: Receipt.parse(each, domain, 1), bool, 10**9)) as log:
        assert heard and all(log.of(submission) and log.stored(submission) for submission in heard)


@pytest.mark.parametrize("place", ["validator/data", "hub"])
def test_a_book_of_the_chain_is_read_on_or_says_how_to_begin_anew(disk: Disk, place: str) -> None:
    file = disk.folder / place / "chain.sqlite"
    try:
        with closing(open_book(file)) as book:
            assert View(book).count_submissions() == disk.rows[f"{place}/chain"]["submissions"] > 0
    except IntegrityError as error:
        assert error.hint == "delete it: it is read again from the chain"


def test_a_hub_still_has_its_receipts_and_takes_more(disk: Disk) -> None:
    submissions = disk.ids("hub/hub", "receipts")
    with closing(Packs(disk.folder / "hub/store/packs.sqlite")) as packs:
        assert len(packs.names()) == disk.rows["hub/store/packs"]["members"]
    with closing(Database(disk.folder / "hub/hub.sqlite")) as database:
        for submission in submissions:
            for receipt in database.receipts_on(submission):
                assert Receipt.parse(receipt, disk.domain, 1).submission == submission
        assert len(database.receipts(0, 100)) == disk.rows["hub/hub"]["receipts"] > 0
        database.add_stored(b"new", b"root", 1, "{}", 1)


def test_every_key_opens_and_still_knows_what_it_has_sent(disk: Disk) -> None:
    keystores = [file for file in disk.folder.glob("*/keys/*.json")]
    assert {file.stem for file in keystores} == {"node", "operator", "validator", "relay", "bootnode"}
    assert all(load_keystore(file, PASSWORD).address for file in keystores)
    for file in disk.folder.rglob("transactions*.sqlite"):
        with closing(TransactionLog(file)) as log:
            sent = disk.rows[str(file.relative_to(disk.folder).with_suffix(""))]["transactions"]
            assert len(log.landed_from(0, 10**6)) <= sent
            assert sent == 0 or log.next_nonce() > 0


def test_settings_spec_state_and_peers_are_read(disk: Disk) -> None:
    for role, kind in SETTINGS.items():
        assert load(kind, disk.folder / role / f"{role}.toml").value
        assert Home(disk.folder / role, role).read_status() is not None
    for role in ("node", "validator", "relay"):
        assert spec_file.find(Home(disk.folder / role, role), None, None) is not None, role
        assert peers.load(disk.folder / role / "data" / PEERS, most=100).peers, role
