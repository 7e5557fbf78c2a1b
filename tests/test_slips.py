"""What a slip costs, and what mteb's definition gives a model."""

import pytest

from conftest import refused
from medir_nb.core import MedirError
from medir_nb.encoder import encoder_spec
from medir_nb.evaluator import SLIPS, beside_mteb, slip_costs, slip_scores, with_slip
from medir_nb.papers import Ledger, published


@pytest.mark.parametrize(
    ('slip', 'expression'),
    [
        ('instruction', 'smollm2(instruct=false)'),
        ('end token', 'smollm2(append_eos=false)'),
        ('pooling', 'smollm2(pooling=mean)'),
        ('length', 'smollm2(max_document_tokens=64,max_query_tokens=64)'),
        ('normalisation', 'smollm2(similarity=dot)'),
    ],
)
def test_a_slip_is_a_setting(slip, expression):
    assert with_slip('smollm2', slip) == expression


def test_a_slip_stands_over_settings_and_what_a_model_has_not_is_not_broken():
    assert with_slip('minilm(dtype=bfloat16)', 'pooling') == 'minilm(backend=transformers,dtype=bfloat16,pooling=cls)'
    assert [slip for slip in SLIPS if not with_slip('minilm', slip)] == ['instruction', 'prefix', 'end token']
    with pytest.raises(MedirError, match='unknown slip'):
        with_slip('minilm', 'poolign')


@pytest.mark.medium
def test_what_pooling_costs_is_the_difference_of_two_evaluations():
    (cost,) = slip_costs(slip_scores('minilm', 'hpo-lay', ['pooling'])).itertuples()
    assert cost.low <= cost.difference <= cost.high < 0
    assert round(cost.value - cost.difference, 4) == 0.6552  # MiniLM as it is


@pytest.mark.medium
def test_a_slip_that_gives_the_printed_digit_explains_a_cell(own_registry):
    scores = slip_scores('minilm', 'zh-lay', ['pooling', 'normalisation'])
    whole, pooled, dot = (f'{score.values("nDCG@10").mean():.3f}' for score in scores.values())
    assert len({whole, pooled, dot}) == 3
    said = {}
    for printed in (whole, pooled, dot, '0.999'):
        table = {'columns': ['zh-lay'], 'measure': 'nDCG@10', 'rows': {'Ours': printed}}
        own_registry(papers={'mine': {'title': 'Mine', 'tables': {'Table 1': table}}})
        ledger = Ledger(published('mine'), scores.values(), systems={'Ours': 'minilm'})
        said[printed] = ledger.frame.set_index('system').verdict
    ours = [verdicts['Ours'] for verdicts in said.values()]
    assert ours == ['equal', 'explained: pooling', 'explained: normalisation', 'unexplained']
    assert said[whole]['minilm(backend=transformers,pooling=cls)'] == 'not comparable: other settings than the row'


def test_mtebs_reading_stands_beside_the_rows():
    table = beside_mteb('sfr-embedding-mistral', 'r2med-pmc-treatment', query='a case')
    assert table.mteb['query'].endswith('\nQuery: a case') and table.here['query'].endswith('\nQuery: a case')
    assert table.same[['query', 'document', 'data revision']].tolist() == ['no', 'yes', 'yes']
    assert beside_mteb('bge-large-en-v1.5', 'r2med-pmc-treatment').same['query'] == 'yes'
    assert beside_mteb('bge-large-en', 'nfcorpus').same['model revision'] == 'yes'


@pytest.mark.parametrize('how', [('--break', 'pooling'), ('--beside', 'mteb')])
def test_a_retriever_that_is_no_encoder_is_no_unknown_model(medir, how):
    refused(medir('contract', 'bm25', 'nfcorpus', *how), 'bm25 is no encoder; name a model of `medir models`')
    with pytest.raises(MedirError, match="unknown model 'bm52'"):
        encoder_spec('bm52')


@pytest.mark.parametrize('slip', ['pooling', 'length', 'end token'])
def test_a_service_has_no_slips_of_its_own_affairs(slip):
    assert with_slip('text-embedding-3-large', slip) == ''
