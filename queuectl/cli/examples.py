"""The examples in the help of each command, by the words of the command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EXAMPLES: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "get": (
        ("List the pending workloads with a label", "get workloads --state Pending -l run=sweep"),
        ("List the queues with their use, quota and gangs", "get clusterqueues"),
        ("Sum up the nodes of each flavor", "get nodes --summary"),
    ),
    "describe": (
        ("Show a workload with its explanation and history", "describe workload team-a/train"),
        ("Show a queue", "describe clusterqueue team-a"),
    ),
    "explain": (
        ("Show why a workload is pending", "explain team-a/train"),
        ("The same for a program", "explain team-a/train -o json"),
    ),
    "whatif": (
        ("Show whether a job would start now", "whatif -f job.yaml"),
        ("Show what the drain of two nodes would evict", "whatif --drain node-1,node-2"),
        ("Show what four more nodes would start", "whatif --add node-1=4"),
    ),
    "history": (
        ("Show what happened to a workload", "history team-a/train"),
        ("Show its evictions only", "history team-a/train --evictions"),
    ),
    "eff": (
        ("Show what a running or finished workload used", "eff team-a/train"),
        ("The same for a program", "eff team-a/train -o json"),
    ),
    "wait": (
        ("Wait until a workload runs", "wait team-a/train"),
        (
            "Wait until it has finished, for an hour at most",
            "wait team-a/train --for finished --timeout 1h",
        ),
    ),
    "logs": (
        ("Follow the log of the first pod", "logs team-a/train -f"),
        ("Print the last lines of one rank", "logs team-a/train --rank 3 --tail 50"),
        (
            "Print the logs of the last ten minutes of all ranks",
            "logs team-a/train --all-ranks --since 10m",
        ),
    ),
    "cancel": (
        ("Delete a job", "cancel team-a/train"),
        (
            "Show which of your pending jobs would be deleted",
            "cancel --mine --state pending --dry-run",
        ),
        ("Delete the jobs with a label, without a question", "cancel -l run=sweep --yes"),
    ),
    "top": (
        ("Show queues and gangs until you press q", "top"),
        ("Print them once", "top | cat"),
    ),
    "hold": (
        ("Keep a workload from admission", "hold team-a/train"),
        ("Show what an eviction of a running workload costs", "hold team-a/train --dry-run"),
    ),
    "release": (
        ("Release a held workload", "release team-a/train"),
        ("Wait up to 30 seconds for the result", "release team-a/train --wait 30s"),
    ),
    "requeue": (
        ("End the back-off of a workload", "requeue team-a/train"),
        ("Show what an eviction of a running workload costs", "requeue team-a/train --dry-run"),
    ),
    "move": (
        ("Move a pending workload to the LocalQueue urgent", "move team-a/train urgent"),
        ("Wait up to 30 seconds for the result", "move team-a/train urgent --wait 30s"),
    ),
    "subscribe": (
        ("Get a message about each event of your jobs", "subscribe chat"),
        (
            "Get email about failed and evicted jobs of a namespace",
            "subscribe mail -n team-a --events failed,evicted",
        ),
        ("Get the events of a queue together", "subscribe chat --queue team-a --digest"),
    ),
    "sendtest": (
        ("Send a test event", "sendtest chat"),
        ("Send test email to your own address", "sendtest mail"),
    ),
    "stop": (
        ("Let no more gangs of a queue start", "stop clusterqueue team-a"),
        ("Show which gangs a drain would evict", "stop clusterqueue team-a --drain --dry-run"),
    ),
    "resume": (
        ("Resume a queue", "resume clusterqueue team-a"),
        ("Resume two LocalQueues of a namespace", "resume localqueue main urgent -n team-a"),
    ),
    "priority": (
        ("Set the priority of a workload for two hours", "priority team-a/train 1000 --until 2h"),
        ("Reset it to the priority of its classes", "priority team-a/train --reset"),
    ),
    "preempt": (
        ("Evict a running workload", "preempt team-a/train"),
        ("Show the gangs that would start", "preempt team-a/train --dry-run"),
    ),
    "deactivate": (
        ("Stop a workload until it is activated", "deactivate team-a/train"),
        ("Wait up to a minute for the result", "deactivate team-a/train --wait 1m"),
    ),
    "activate": (
        ("Activate a workload", "activate team-a/train"),
        ("Wait up to a minute for the result", "activate team-a/train --wait 1m"),
    ),
    "check": (
        ("Let a workload pass an admission check", "check team-a/train approval Ready"),
        ("Reject it, with a message", "check team-a/train approval Rejected --message 'no budget'"),
    ),
    "topup": (
        (
            "Add 500 GPU-hours to the current month",
            "topup team-a --gpu-hours 500 --reason 'paper deadline'",
        ),
        (
            "Add them to another month",
            "topup team-a --gpu-hours 500 --reason 'quarter 1' --month 2027-01",
        ),
    ),
    "report": (
        ("GPU-hours of each user in a week", "report usage --by user --since 7d"),
        ("The cost of each workload as CSV", "report cost --by workload -o csv"),
        ("GPU-hours that jobs held and did not use", "report waste"),
    ),
    "init": (
        ("Propose queues for the cluster of your kubeconfig", "init"),
        ("Propose a queue for two namespaces", "init -n team-a -n team-b --queue gpus"),
    ),
    "apply": (
        ("Show what a file would change", "apply -f queues.yaml --dry-run"),
        ("Create or replace the objects of a file", "apply -f queues.yaml"),
    ),
    "delete": (
        ("Show what the removal of a queue would do", "delete clusterqueue team-a --dry-run"),
        ("Delete the objects of a file", "delete -f queues.yaml"),
    ),
    "config export": (
        ("Save the configuration", "config export"),
        ("Copy it to objects of the cluster", "config export --kubernetes | kubectl apply -f -"),
    ),
    "config diff": (
        ("Compare the server with two files", "config diff -f queues.yaml -f budgets.yaml"),
        ("Compare it with standard input", "config diff -f -"),
    ),
    "config prices": (
        ("Read the prices of OpenCost", "config prices -f default.json"),
        ("Store them", "config prices -f default.json | queuectl apply -f -"),
    ),
    "config owner": (
        ("Show who owns the configuration", "config owner"),
        ("The same with a server of your choice", "config owner --server https://127.0.0.1:8443"),
    ),
    "config confirm": (
        ("Show the deletion that waits for you", "config confirm"),
        ("Confirm it", "config confirm 5f0c2d"),
    ),
    "plan": (
        ("Plan files without a cluster", "plan -f nodes.yaml -f queues.yaml -f job.yaml"),
        ("Explain the first pending gang", "plan -f nodes.yaml -f waiting.yaml --explain 1"),
    ),
    "simulate": (
        (
            "Simulate a trace of jobs",
            "simulate -f nodes.yaml -f queues.yaml --trace trace.csv",
        ),
        (
            "Simulate the jobs of the last month with another strategy",
            "simulate --live --history 30d --strategy Backfill",
        ),
    ),
    "trace": (
        ("Export the jobs of 30 days", "trace --since 30d"),
        ("Export them without names", "trace --since 30d --anonymous"),
    ),
    "advise": (
        ("Rank changes for the jobs of the last month", "advise --live --history 30d"),
        (
            "Rank them by the waits of large jobs",
            "advise --live --history 30d --objective multi-node-wait",
        ),
    ),
    "serve": (
        ("Run a controller with an embedded database", "serve"),
        ("Watch a cluster of Kueue and change nothing", "serve --shadow"),
    ),
    "webhook": (
        ("Serve the webhook", "webhook --host webhook.example.com --policies policies.yaml"),
        (
            "Listen on this machine only",
            "webhook --host localhost --listen [::1]:9443 --policies p.yaml",
        ),
    ),
    "db upgrade": (
        ("Upgrade the schema", "db upgrade"),
        ("Run the part that the previous release accepts", "db upgrade --pre"),
    ),
    "db current": (
        ("Show the revision of the embedded database", "db current"),
        (
            "Show the revision of another database",
            "db current --database-url postgresql://queuectl@db/queuectl",
        ),
    ),
    "db status": (
        ("Show the revision and the replicas", "db status"),
        (
            "The same of another database",
            "db status --database-url postgresql://queuectl@db/queuectl",
        ),
    ),
    "db move": (
        ("Copy the embedded database", "db move --to postgresql://queuectl@db/queuectl"),
        ("Copy another database", 'db move --database-url "$OLD_URL" --to "$NEW_URL"'),
    ),
    "db serve": (
        ("Serve the bundled database", "db serve --host queuectl-database.queuectl-system.svc"),
        ("Serve it from a directory", "db serve --host 127.0.0.1 --directory ./data"),
    ),
    "kueue hand-over": (
        ("Show the fate of each job in Kueue", "kueue hand-over --dry-run"),
        ("Hand the jobs of a namespace over", "kueue hand-over -n team-a"),
    ),
    "drain": (
        ("Wait until no gang holds a cordoned node", "drain node-1"),
        ("Move the gangs after ten minutes", "drain node-1 --move --after 10m"),
        ("Show what becomes of the gangs", "drain node-1 --move --dry-run"),
    ),
    "doctor": (
        ("Check your connection, the server and the cluster", "doctor"),
        ("Check all invariants of the controller", "doctor --audit"),
    ),
    "audit": (
        ("List the changes of a day", "audit --since 24h"),
        ("List the requests of one user", "audit --caller alice"),
    ),
    "recover": (
        ("Rebuild an empty database", "recover -f queues.yaml"),
        ("Rebuild it from two files", "recover -f queues.yaml -f budgets.yaml"),
    ),
    "demo": (
        ("Run the demo and leave the cluster running", "demo --keep"),
        ("Stop it", "demo --down"),
    ),
    "localcluster up": (
        ("Start a cluster of 8 nodes", "localcluster up"),
        ("Start one with the operators of two job kinds", "localcluster up --operators jobset,lws"),
    ),
    "localcluster down": (
        ("Stop the cluster", "localcluster down"),
        ("Stop all clusters of this machine", "localcluster down --all"),
    ),
    "localcluster exporters": (
        ("Simulate the GPU exporters", "localcluster exporters"),
        ("Simulate them on another port", "localcluster exporters --port 9401"),
    ),
    "completion": (
        ("Complete commands in this bash", "completion bash"),
        ("Print the script of zsh", "completion zsh"),
    ),
    "help": (
        ("Show the options of a command", "help get"),
        ("Show the options of a command of a group", "help config diff"),
    ),
}
"""Two or three pairs for each command with options: what the line does, and the words after the name of the program."""
