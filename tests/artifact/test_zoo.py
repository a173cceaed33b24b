"""Every layout of the Hub, read and exported: ids and outputs are transformers' (tests/zoo)."""

import pathlib
import re

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("google.protobuf")  # to write SentencePiece models in the published forms

from tests.helpers import proofs
from tests.zoo import layouts, ours, table, theirs

CELLS = {cell.name: cell for cell in table.cells()}
QUICK = r"bert-base-uncased/(?!.*(For|Model))|.*/published"
KEPT = [name for name in CELLS if re.match(QUICK, name)]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    return layouts.Workshop(tmp_path_factory.mktemp("workshop"))


@pytest.mark.parametrize("name", proofs.all_but(CELLS, *KEPT))
def test_folder(name, workshop, tmp_path):
    cell = CELLS[name]
    folder, export = tmp_path / "folder", tmp_path / "export"
    folder.mkdir()
    cell.make(cell.species, workshop, folder)
    theirs.save(folder, cell.group)
    own = cell.own(theirs.version_of(folder))
    result = ours.compare(folder, export, own)
    if cell.refused is not None:
        assert result.refusal and "\n" not in result.refusal
        assert cell.refused in result.refusal
        return
    assert not result.refusal
    theirs.save(export, cell.group, theirs.texts_of(folder))
    assert (*result.differences, *ours.compare_export(folder, export, own)) == ()


def test_the_table_has_every_model_type_that_is_read():
    assert set(layouts.CLASSES) == ours.model_types()


def test_every_rule_of_our_own_is_of_a_cell():
    for rule in table.OWN:
        assert set(rule.cells) <= CELLS.keys()


def test_a_wrong_id_and_a_wrong_output_show(workshop, tmp_path):
    """The comparison can fail."""
    cell = CELLS["bert-base-uncased/saved"]
    folders: list[pathlib.Path] = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        cell.make(cell.species, workshop, folder)
    file = folders[1] / "tokenizer_config.json"
    file.write_text(file.read_text().replace('"do_lower_case": true', '"do_lower_case": false'))
    layouts.bfloat16(cell.species, workshop, folders[1])
    for folder in folders:
        theirs.save(folder, "weights")
    found = ours.compare_export(*folders)
    assert any("mlm_logits" in problem for problem in found)
