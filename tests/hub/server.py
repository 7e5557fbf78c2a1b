"""A small server that speaks the Hub's endpoints: what huggingface_hub and datasets ask when HF_ENDPOINT names it."""

import collections, contextlib, hashlib, http.server, json, re, socket, threading, time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

Asked = collections.namedtuple('Asked', 'method kind id revision path status')
Asked.__doc__ = 'One request: `kind` models or datasets, `path` of a file, or the endpoint in brackets.'

LARGE = ('.safetensors', '.bin', '.parquet', '.model', '.gguf')  # what the Hub keeps outside git


@dataclass
class Faults:
    delay: float = 0  # seconds before an answer
    gated: int = 0  # 401: nobody is logged in; 403: access was not granted
    missing: tuple = ()  # files that are listed but not there
    cut: set = field(default_factory=set)  # files whose first answer breaks off in the middle
    silent: bool = False  # takes the connection and never answers


class File:
    "A file of a repository with the hashes that the Hub tells."

    def __init__(self, path):
        self.path, self.data, self.large = path, path.read_bytes(), path.suffix in LARGE
        self.blob = hashlib.sha1(b'blob %d\0' % len(self.data) + self.data).hexdigest()
        self.sha256 = hashlib.sha256(self.data).hexdigest()
        self.etag = self.sha256 if self.large else self.blob


PARQUET = 'refs/convert/parquet'  # where the Hub keeps its own copy of a data set


class Repository:
    "A model or data set: `build(folder)` writes it on the first request; all of `commits` serve it, `main` the first."

    def __init__(self, kind, id, build, commits=()):
        self.kind, self.id, self.build, self.faults = kind, id, build, Faults()
        self.commits = list(commits) or [hashlib.sha1(f'{kind}/{id}'.encode()).hexdigest()]
        self._files, self._lock = None, threading.Lock()

    def commit(self, revision):
        "The commit that `revision` names or begins, or None; the Hub's Parquet copy is the last of them."
        named = {'main': self.commits[0], PARQUET: self.commits[-1]}
        begun = [commit for commit in self.commits if len(revision) >= 7 and commit.startswith(revision)]
        return named.get(revision, begun[0] if begun else None)

    def files(self, store):
        "Its files by path; built once below the folder `store`."
        with self._lock:
            if self._files is None:
                folder = Path(store) / self.kind / self.id.replace('/', '--')
                whole = folder.with_name(folder.name + '.whole')
                if not whole.is_file():
                    folder.mkdir(parents=True, exist_ok=True)
                    self.build(folder)
                    whole.touch()
                found = sorted(p for p in folder.rglob('*') if p.is_file())
                self._files = {p.relative_to(folder).as_posix(): File(p) for p in found}
            return self._files


_API = re.compile(r'^/api/(models|datasets)/(?P<id>[^/]+(?:/[^/]+)?)$')
_API_AT = re.compile(r'^/api/(models|datasets)/(?P<id>.+?)/(?P<what>revision|tree|paths-info|refs)(?:/(?P<rest>.*))?$')
_RESOLVE = re.compile(r'^/(?P<datasets>datasets/)?(?P<id>[^/]+(?:/[^/]+)?)/resolve/(?P<revision>[^/]+)/(?P<path>.+)$')


class Refused(Exception):
    "An answer that is an error; `code` goes into X-Error-Code."

    def __init__(self, status, code, message):
        super().__init__(message)
        self.status, self.code = status, code


class Hub:
    "The server of `repositories` (a list) on a free port; it builds what is asked for below `store`, logs in `asked`."

    def __init__(self, repositories, store):
        self.repositories = {(r.kind, r.id): r for r in repositories}
        self.store, self.asked = Path(store), []
        self.silent = False  # accepts and never answers
        self._log, self._stop = threading.Lock(), threading.Event()
        self.server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), type('Handler', (Handler,), {'hub': self}))
        self.server.daemon_threads = True
        self.url = f'http://127.0.0.1:{self.server.server_port}'
        # another host, as the Hub sends to for large files
        self.elsewhere = f'http://localhost:{self.server.server_port}'
        threading.Thread(target=self.server.serve_forever, kwargs={'poll_interval': 0.05}, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stop.set()
        self.server.shutdown()
        self.server.server_close()

    def at(self, kind, id):
        return self.repositories[kind, id]

    def log(self, *what):
        with self._log:
            self.asked.append(Asked(*what))

    def fetched(self, kind=None, id=None):
        "What was asked (of one repository), without what huggingface_hub asks again and again."
        with self._log:
            return [a for a in self.asked if kind in (None, a.kind) and id in (None, a.id)]

    def forget(self):
        with self._log:
            self.asked.clear()

    @contextlib.contextmanager
    def faulty(self, kind, id, **faults):
        "The repository with faults, inside the block."
        repository = self.at(kind, id)
        repository.faults = Faults(**faults)
        try:
            yield repository
        finally:
            repository.faults = Faults()


class Handler(http.server.BaseHTTPRequestHandler):
    hub = None
    protocol_version = 'HTTP/1.1'

    def log_message(self, *_):
        pass

    def do_GET(self):
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get('content-length') or 0))
        self.note = (None, None, None, unquote(url.path))
        self.status = 500
        try:
            if self.hub.silent:
                self._wait_for_ever()
            self._route(unquote(url.path), parse_qs(url.query), parse_qs(body.decode('utf-8', 'replace')))
        except Refused as e:
            told = {'X-Error-Code': e.code, 'X-Error-Message': str(e), 'Content-Type': 'application/json'}
            self._send(e.status, json.dumps({'error': str(e)}).encode(), told)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            self.hub.log(self.command, *self.note, self.status)

    do_HEAD = do_POST = do_GET

    def _route(self, path, query, form):
        if path.startswith('/-/large/'):
            return self._large(*path.removeprefix('/-/large/').split('/', 2))
        if found := _RESOLVE.match(path):
            kind = 'datasets' if found['datasets'] else 'models'
            repository, commit = self._repository(kind, found['id'], found['revision'], found['path'])
            return self._resolve(repository, commit, found['path'])
        if found := _API_AT.match(path):
            what = found['what']
            rest = found['rest'] or 'main'
            is_reference = rest == PARQUET or rest.startswith(f'{PARQUET}/')
            revision = PARQUET if is_reference else rest.partition('/')[0]
            rest = rest[len(revision) + 1 :]
            repository, commit = self._repository(found[1], found['id'], revision, f'({what})')
            return self._listed(repository, commit, what, rest, query, form)
        if found := _API.match(path):
            repository, commit = self._repository(found[1], found['id'], 'main', '(info)')
            return self._listed(repository, commit, 'revision', '', query, form)
        raise Refused(404, 'EntryNotFound', 'no such endpoint')

    def _wait_for_ever(self):
        self.hub._stop.wait(3600)
        raise BrokenPipeError

    def _repository(self, kind, id, revision, path):
        self.note = (kind, id, revision, path)
        repository = self.hub.repositories.get((kind, id))
        if repository is None:
            raise Refused(404, 'RepoNotFound', 'Repository not found')
        faults = repository.faults
        if faults.silent:
            self._wait_for_ever()
        if faults.delay:
            time.sleep(faults.delay)
        # the Hub shows what a gated repository is, and gives its files to nobody
        if faults.gated and path[0] != '(':
            raise Refused(faults.gated, 'GatedRepo', f'Access to {kind[:-1]} {id} is restricted.')
        commit = repository.commit(revision)
        if commit is None:
            raise Refused(404, 'RevisionNotFound', f'Invalid rev id: {revision}')
        return repository, commit

    def _listed(self, repository, commit, what, rest, query, form):
        files = repository.files(self.hub.store)
        if what == 'refs':
            main = {'name': 'main', 'ref': 'refs/heads/main', 'targetCommit': repository.commits[0]}
            return self._json({'branches': [main], 'tags': [], 'converts': []})
        if what == 'revision':
            told = dict.fromkeys(('id', 'modelId'), repository.id) | {'_id': commit[:24], 'sha': commit}
            told |= dict(author=repository.id.split('/')[0], lastModified='2024-01-01T00:00:00.000Z')
            told |= dict(private=False, disabled=False, downloads=0, likes=0, tags=[])
            gated = 'manual' if repository.faults.gated else False
            return self._json({**told, 'gated': gated, 'siblings': [{'rfilename': path} for path in files]})
        if what == 'paths-info':
            wanted = [p.strip('/') for p in form.get('paths', [])]
            return self._json([e for p in wanted for e in [self._entry(files, p)] if e])
        recursive = query.get('recursive', ['false'])[0].lower() in ('true', '1')
        inside = f'{rest.strip("/")}/' if rest.strip('/') else ''
        below = [p for p in files if p.startswith(inside)]
        if inside and not below:
            raise Refused(404, 'EntryNotFound', f'{rest} does not exist')
        folders = {p[:i] for p in below for i in range(len(inside) + 1, len(p)) if p[i] == '/'}
        listed = sorted([*folders, *below])
        if not recursive:
            listed = [p for p in listed if '/' not in p[len(inside) :]]
        self._json([self._entry(files, p) for p in listed])

    def _entry(self, files, path):
        if path in files:
            f = files[path]
            lfs = {'lfs': {'oid': f.sha256, 'size': len(f.data), 'pointerSize': 134}} if f.large else {}
            return {'type': 'file', 'oid': f.blob, 'size': len(f.data), 'path': path, **lfs}
        if any(p.startswith(f'{path}/') for p in files):
            return {'type': 'directory', 'oid': hashlib.sha1(path.encode()).hexdigest(), 'size': 0, 'path': path}

    def _resolve(self, repository, commit, path):
        "A file at a commit; a large one lies elsewhere, as on the Hub."
        f = repository.files(self.hub.store).get(path)
        if f is None or path in repository.faults.missing:
            raise Refused(404, 'EntryNotFound', 'Entry not found')
        about = {'X-Repo-Commit': commit, 'Accept-Ranges': 'bytes'}
        if f.large:
            about |= {'X-Linked-Etag': f'"{f.etag}"', 'X-Linked-Size': str(len(f.data))}
            place = f'{self.hub.elsewhere}/-/large/{repository.kind}/{f.sha256}/{repository.id}/{path}'
            self._send(302, b'', {**about, 'Location': place})
        else:
            self._file(repository, f, path, {**about, 'ETag': f'"{f.etag}"'})

    def _large(self, kind, sha256, rest):
        found = next(r for (k, i), r in self.hub.repositories.items() if k == kind and rest.startswith(f'{i}/'))
        path = rest[len(found.id) + 1 :]
        self.note = (kind, found.id, '(large)', path)
        f = found.files(self.hub.store)[path]
        if f.sha256 != sha256:
            raise Refused(404, 'EntryNotFound', 'Entry not found')
        self._file(found, f, path, {'ETag': f'"{f.etag}"', 'Accept-Ranges': 'bytes'})

    def _file(self, repository, f, path, headers):
        data, status, size = f.data, 200, len(f.data)
        if asked := re.fullmatch(r'bytes=(\d+)-(\d*)', self.headers.get('range', '')):
            start, stop = int(asked[1]), min(int(asked[2] or size - 1), size - 1)
            if start >= size:
                return self._send(416, b'', {'Content-Range': f'bytes */{size}'})
            data, status = data[start : stop + 1], 206
            headers = {**headers, 'Content-Range': f'bytes {start}-{stop}/{size}'}
        if self.command == 'GET' and path in repository.faults.cut:
            repository.faults.cut.discard(path)
            self._send(status, data[: len(data) // 2], {**headers, 'Content-Length': str(len(data))})
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return None
        self._send(status, data, headers)

    def _json(self, value):
        self._send(200, json.dumps(value).encode(), {'Content-Type': 'application/json'})

    def _send(self, status, data, headers):
        self.status = status
        self.send_response(status)
        for name, value in {'Content-Length': str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != 'HEAD':
            self.wfile.write(data)
