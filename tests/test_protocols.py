"""What each paper's code does, as exact strings: instructions, roles of sentences, titles, answers, precision."""
import pytest
from medir_nb.core import registry
from medir_nb.data import Task
from medir_nb.encoder import Encoder

def registered(name):
    "A registry task without its texts."
    return Task(name, instructions=registry('tasks')[name].get('instructions', {}))

def rendered(model, task, role, title='T', body='B'):
    "What `model` is given for a text of `task`; a query has no title."
    encoder = Encoder(model)
    return encoder.render([('' if role == 'query' else title, body)], role, encoder.instruction(task, role))[0]

INSTRUCTOR_XL = [
    ('nfcorpus', 'Represent the nutrition facts to retrieve Public medical articles: B', 'Represent the Public medical articles for retrieval: T B'),
    ('scifact', 'Represent the Scientific queries for retrieving a supporting passage: B', 'represent the scientific paragraph for retrieval: T B'),
    ('scidocs', 'Represent a Science question for retrieving supporting papers: B', 'Represent the Science paper: T B'),
    ('trec-covid', 'Represent the Coronavirus questions to retrieve a supporting document: B', 'Represent the Coronavirus documents for retrieval: T B'),
    ('bioasq', 'Represent the question for retrieving supporting documents: B', 'Represent the document for retrieval: T B'),      # a task that its authors have no text for
]
INSTRUCTOR_L = [
    ('nfcorpus', 'Represent the Medicine question for retrieving a relevant document: B', 'Represent the medical document for retrieval: T B'),
    ('scifact', 'Represent a Scientific query for retrieving a supporting passage; B', 'represent the Scientific passage for retrieval; T B'),
    ('scidocs', 'Represent a Science question for retrieving supporting papers: B', 'Represent the Science paper: T B'),
    ('trec-covid', 'Represent the Coronavirus question for retrieving supporting documents: B', 'Represent the Coronavirus document for retrieval: T B'),
    ('bioasq', 'Represent the question for retrieving supporting documents: B', 'Represent the document for retrieval: T B'),
]

@pytest.mark.parametrize('model,task,query,document', [*(('instructor-xl', *row) for row in INSTRUCTOR_XL), *(('instructor-l', *row) for row in INSTRUCTOR_L)])
def test_instructor_gets_its_authors_texts(model, task, query, document):
    assert rendered(model, registered(task), 'query') == query
    assert rendered(model, registered(task), 'document') == document

def test_instructor_gets_r2meds_texts_there():
    for model in ('instructor-l', 'instructor-xl'):
        assert rendered(model, registered('r2med-biology'), 'query') == 'Represent the Biology post for retrieving relevant paragraphs: B'
        assert rendered(model, registered('r2med-biology'), 'document') == 'Represent the Biology paragraph for retrieval: T B'
