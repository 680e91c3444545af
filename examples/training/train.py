"""Trains a small network on all nodes of a TrainJob: PyTorch's DistributedDataParallel over gloo, on CPUs.

It prints the loss as it falls, keeps a checkpoint on a volume, and saves when it is told to end (a preemption): started
again, it continues at the step that it saved. With SAVE, it saves every so many steps, reports each checkpoint to
Trainer's status server, and doesn't listen when it is told to end: a preemption may wait for the next checkpoint.
"""

import json
import os
import signal
import ssl
import sys
import time
import urllib.request

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = int(os.environ.get("STEPS", "200"))
EVERY = int(os.environ.get("EVERY", "20"))  # steps between two lines
PAUSE = float(os.environ.get("PAUSE", "0"))  # seconds of each step, to watch it
CHECKPOINT = os.environ.get("CHECKPOINT")  # file; none is kept without it
SAVE = int(os.environ.get("SAVE", "0"))  # steps between two checkpoints; 0 saves when it is told to end

# Kubeflow Trainer sets PET_…, torchrun's variables. This starts without torchrun, so it takes them over.
os.environ["RANK"] = os.environ.get("PET_NODE_RANK", "0")
os.environ["WORLD_SIZE"] = os.environ.get("PET_NNODES", "1")
os.environ["MASTER_ADDR"] = os.environ.get("PET_MASTER_ADDR", "localhost")
os.environ["MASTER_PORT"] = os.environ.get("PET_MASTER_PORT", "29500")

told_to_end = False


def end(*_):
    global told_to_end
    told_to_end = True


def all_agree(flag):
    """Tells whether any rank was told to end; all ranks must stop after the same step."""
    told = torch.tensor([1.0 if flag else 0.0])
    dist.all_reduce(told)
    return told.item() > 0


def leave():
    """Ends when all ranks have read all that was sent: a rank that goes before cuts off what another still reads."""
    dist.monitored_barrier()


def save(model, step):
    """Keeps a checkpoint. A process that is killed meanwhile leaves the one of before."""
    torch.save({"model": model.state_dict(), "step": step}, CHECKPOINT + ".part")
    os.replace(CHECKPOINT + ".part", CHECKPOINT)
    print(f"saved step {step}", flush=True)


def report_saved(step):
    """Reports a checkpoint as metric "saved", which annotation signalbox.dev/checkpoint-metric names."""
    with open(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]) as file:
        token = file.read()
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    body = {"trainerStatus": {"lastUpdatedTime": now, "metrics": [{"name": "saved", "value": str(step)}]}}
    request = urllib.request.Request(
        os.environ["KUBEFLOW_TRAINER_SERVER_URL"], json.dumps(body).encode(),
        {"Authorization": "Bearer " + token, "Content-Type": "application/json"}, method="POST")
    ca = ssl.create_default_context(cafile=os.environ["KUBEFLOW_TRAINER_SERVER_CA_CERT"])
    try:
        urllib.request.urlopen(request, timeout=5, context=ca).close()
    except OSError as e:  # the training goes on, and the next report may arrive
        print(f"not reported: {e}", flush=True)


def main():
    signal.signal(signal.SIGTERM, signal.SIG_IGN if SAVE else end)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world}, GPUs {os.environ.get('NVIDIA_VISIBLE_DEVICES', 'none')}", flush=True)

    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    truth = torch.randn(16, 1)
    step = 0
    if CHECKPOINT and os.path.exists(CHECKPOINT):
        saved = torch.load(CHECKPOINT)
        model.load_state_dict(saved["model"])
        step = saved["step"]
        print(f"continues after step {step}", flush=True)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
    losses = []  # since the last line
    data = torch.Generator().manual_seed(1000 * rank + step)

    while step < STEPS:
        inputs = torch.randn(64, 16, generator=data)
        loss = torch.nn.functional.mse_loss(parallel(inputs), inputs @ truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        losses.append(loss.item())
        if rank == 0 and (step % EVERY == 0 or step == 1):
            print(f"step {step} loss {sum(losses) / len(losses):.4f}", flush=True)
            losses.clear()
        if PAUSE:
            signal.sigtimedwait([], PAUSE)
        if SAVE and step % SAVE == 0 and rank == 0:
            save(model, step)
            report_saved(step)
        if all_agree(told_to_end):
            if rank == 0 and CHECKPOINT:
                save(model, step)
            leave()
            sys.exit(143)  # a pod that is evicted by a drain and exits with 0 would count as done
    leave()
    print(f"rank {rank} done", flush=True)


if __name__ == "__main__":
    main()
