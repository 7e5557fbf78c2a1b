"""A simulated cluster: nodes of Ray on this machine. Ray gives its dashboard's agent 15 seconds to start, which a busy
machine does not keep, so an agent that does nothing takes its place: nobody looks at a dashboard here."""

import contextlib, os, socket, sys, threading, time
from pathlib import Path
import psutil

AGENT = """
import os, sys, time
told = dict(word[2:].split('=', 1) for word in sys.argv[1:] if word.startswith('--') and '=' in word)
path = os.path.join(told['session-dir'], 'dashboard_agent_listen_port_' + told['node-id'])
with open(path + '.new', 'w') as file:
    file.write('-1')
os.replace(path + '.new', path)
parent = os.getppid()
while os.getppid() == parent:
    time.sleep(1)
"""

NODE = {'num_cpus': 1, 'object_store_memory': 80 * 2**20, 'include_dashboard': False}


def free_ports():
    names = 'metrics_agent_port', 'metrics_export_port', 'dashboard_agent_listen_port', 'runtime_env_agent_port'
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in names]
        for each in sockets:
            each.bind(('127.0.0.1', 0))
        return dict(zip(names, (each.getsockname()[1] for each in sockets), strict=True))


class Nodes:
    "Nodes of a cluster with one processor each; the first one, which leads it, stays."

    def __init__(self, cluster, others: int):
        self.cluster, self.others = cluster, []
        for _ in range(others):
            self.add()

    def add(self, **environment):
        "Another node, whose workers see this environment."
        with_it = {'env_vars': environment} if environment else {}
        self.others.append(self.cluster.add_node(**NODE, **free_ports(), **with_it))
        return self.others[-1]

    def remove(self, node):
        self.others.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)

    def at_work(self, name='_Actor.work') -> dict:
        "Processes of Ray with this name, and the node of each."
        found = {}
        for node in [self.cluster.head_node, *self.others]:
            for process in psutil.Process(node.all_processes['raylet'][0].process.pid).children():
                with contextlib.suppress(psutil.Error):
                    if f'ray::{name}' in ' '.join(process.cmdline()):
                        found[process.pid] = node
        return found

    @contextlib.contextmanager
    def losing_one(self, folder: Path, pattern: str, many: int):
        "A node that works is removed when so many files are in the folder, and joined by another one at the end."
        lost = []

        def lose():
            working = []
            while len(list(folder.glob(pattern))) < many or not working:
                time.sleep(0.05)
                working = [node for node in self.at_work().values() if node in self.others]
            lost.append(working[0])
            self.remove(working[0])

        thread = threading.Thread(target=lose, daemon=True)
        thread.start()
        yield
        thread.join(1)
        assert lost, 'the work was done before a node was lost'
        self.add()


@contextlib.contextmanager
def cluster_of(nodes, folder):
    "A cluster of so many `Nodes`."
    import ray
    from ray._private import ray_constants, services
    from ray.cluster_utils import Cluster

    (agent := Path(folder) / 'agent.py').write_text(AGENT)
    command_of = services._build_python_executable_command_memory_profileable

    def light(component, *given, **named):
        is_agent = component == ray_constants.PROCESS_TYPE_DASHBOARD_AGENT
        return [sys.executable, '-S', str(agent)] if is_agent else command_of(component, *given, **named)

    services._build_python_executable_command_memory_profileable = light
    # workers are as urgent as any process, and not 15 steps less
    os.environ |= {'RAY_USAGE_STATS_ENABLED': '0', 'RAY_worker_niceness': '0'}
    os.environ['PYTHONPATH'] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    cluster = Cluster(initialize_head=True, head_node_args=NODE | free_ports())
    try:
        yield Nodes(cluster, nodes - 1)
    finally:
        ray.shutdown()
        cluster.shutdown()
        services._build_python_executable_command_memory_profileable = command_of
