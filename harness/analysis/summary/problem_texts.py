"""Every problem that a recording can have, in the words of the report; the text below each says when it is reported.

`help numbers problems` prints them."""

from __future__ import annotations

GRAPH_CAPTURE = "a CUDA graph is captured here: its kernels do not run, so this shows nothing about the program's speed"
"""Captures (from `cudaStreamBeginCapture` to `cudaStreamEndCapture`, or of HIP) fill half of the window; or a tenth,
with half of the launches, if graphs are not launched more often than captured. Said first; no cause is given."""
SAMPLED = "this recording is a sample: events are missing everywhere, so a time without work may not be idle time"
"""Fewer than 1 % of the calls that the profiler numbered are in the file, and half of them are over 30 numbers after
the one before; or 20 % of kernels lack their launch and 20 % of launches their kernel, in each third of the recording.
Said first; no cause is given."""
WORK_MISSING = "work of the device is missing in this recording: idle time and its causes cannot be known"
"""For 10 % of the window, in stretches of at least 1 ms, launched work other than collectives waits while nothing that
was recorded runs: it waits for work of another process, or for work that a filter or a cut left out. Or 10 % of the
launches have no work. Said first; no cause is given."""
DEVICE_ONLY = "the host is missing in this recording: why a device has no work cannot be known"
"""Under 10 % of at least ten kernels have a known launch, and there is nearly no call and nothing else of the host
(nsys records it with `--trace=cuda,nvtx,osrt`, torch.profiler with `ProfilerActivity.CPU`). Said first; no cause on the
host is given."""
DEVICE_MISSING = "the device's work was not recorded: what it did, and when, cannot be known"
"""Calls launch work, or the file names GPUs and no operator is one of a CPU, and it has no kernel, copy or set: the
profiler did not record the device, lost its work, or collected hardware counters. Said first, with the program's
ranges; the host does not stand in for the device."""
FIRST_USE = "the window holds the first use of libraries or kernels: it takes time that later steps do not need"
"""Idle time of the causes `first use` and `graph capture` is 3 % of the window. Said first, if no finding says it with
its time."""
NO_KERNEL = "no kernel ran: the recording holds only what comes before the first step"
"""Copies or sets were recorded, no step is marked, and no kernel ran on any device. Said first; no cause is given."""
CLOCKS_APART = "the clocks of host and device are apart: what the host did while a device had no work cannot be known"
"""Work starts over 1 ms before its launch, and by how much changes during the recording. Said first; no cause on the
host is given."""
CUT_OFF = "the file is cut off: the work after its last event is not known"
"""The file ends in the middle. Steps whose work may be missing are not counted. Said first."""
# Kinds of recordings: a report says them first, in their own sentence.
KINDS = (CUT_OFF, GRAPH_CAPTURE, SAMPLED, WORK_MISSING, DEVICE_ONLY, DEVICE_MISSING, CLOCKS_APART, FIRST_USE, NO_KERNEL)
CLOCK_MOVED = "the device's clock was apart from the host's: its times were moved"
"""A remark. All work starts over 1 ms before its launch, by the same time; or, on a device that had nothing to do, by
the same time after it."""
UNREADABLE = "a trace cannot be read"
"""The reader refuses a file; the other numbers are without it."""
NO_TRACE = "no trace"
"""The run asked for a profiler, and left no trace."""
TRACE_MISSING = "a trace is missing"
"""The run left some of its traces, not all."""
NOT_COMPLETED = "the run did not complete"
"""It failed, was stopped or was stuck: by which rank, where and why. What was recorded before is whole."""
STARTED_AGAIN = "the training was started again"
"""Processes of the training failed, and others took their place, as with torchrun's `--max-restarts`: what is recorded
is of the last ones."""
TRAIN_ALONE = "processes do not train together"
"""Several processes of the run are the same rank, as tasks of srun without `RANK`: who they are, and what makes them
one training. Numbers are those of the first."""
NOT_INJECTED = "a fault was not injected"
"""The run completed, and no step of any rank has the moment of the fault: `data-stall` needs a DataLoader."""
NO_WORK = "no work was recorded on any device"
"""The trace has no events."""
NO_GPU = "recorded without a GPU"
"""An nsys report has ranges and no device: the times of the ranges are right."""
READ_IN_PART = "the reader could not read everything"
"""The reader says which part of a file it saved: the part before a cut; the number of records that it left out,
because they cannot be read, have an impossible time or device, end before they begin, or nest deeper than calls do;
a rank, world size or clock in the file that is impossible."""
EVENTS_DROPPED = "the profiler dropped events"
"""As the profiler counted them."""
WORK_LOST = "the work of some launches is not in the recording: the device was busier than told here"
"""1 % of the launches, and at least four, have no kernel, copy or set, without those of a graph's capture, up to the
last launch that has one. From 10 % on the recording is one in which work of the device is missing."""
STEPS_LOST = "the work of some launches is not in the recording: the steps that made them are left out"
"""As above, if at least two steps in a row have all their work: the longest such row counts."""
LAUNCHES_MISSING = "idle causes and ranges are incomplete: launches are missing"
"""Under 90 % of the kernels in the window have a known launch."""
WHOLE_GRAPHS = "CUDA graphs were recorded whole: their communication is counted as computation"
"""One event per graph."""
EMPTY_STEPS = "steps without any work"
"""On any device."""
NO_STEP = "no step can be counted"
"""Steps were found, and all are cut off or without work."""
UNMARKED_STEPS = "the steps are not marked: periods of a kernel are counted, and a period may be a layer"
"""The trace has no step marks and no range with a step number; a kernel that recurs evenly gives the steps."""
WORK_AFTER_STEPS = "work of the steps continues after their last mark"
"""Over 5 % of the window."""
RANKS_MISSING = "ranks are missing"
"""Fewer were read than the world has."""
RANK_TWICE = "a rank was recorded more than once"
"""In one job, or in files of which nothing tells to which job they belong."""
RANKS_UNKNOWN = "which ranks these files are is not known"
"""Collectives of several files name groups of more ranks, and neither the files nor their folders have a rank or a
number that counts from 0 (`rank_0`, `rank_1`): each file is a job of its own."""
DUPLICATES = "a recording is given more than once, and is read once"
"""A remark: files have the same content, as an unpacked or copied file or a link has. A run's own traces are not
compared."""
NO_RANK = "a process that is no rank used a GPU: its work is not counted"
"""A remark: others of its file have ranks, and all of the world are there or it has no steps."""
UNLIKE_STEPS = "the ranks' steps were found in different ways"
"""`steps.source` differs between ranks."""
UNEVEN = "ranks were not profiled over the same steps"
"""Their steps have other numbers; without numbers, their windows start more than a step apart."""
PROFILER_WAITS = "ranks wait for another rank's profiler to start or stop"
"""A profiler that starts later on one rank makes the others wait in the first collective of their windows; a
profiler that stops, in the last. Ends agree (within 10 % of the starts' spread), the starts are over twice as far
apart as those of every other collective of at least three, and the waiting is 1 % of the windows (from 5 % on
`doubtful`, else a remark). Windows are those of marked steps. First: no earlier one was recorded, and the spread is
that of the windows' starts (without it at most half is left). Last: no later one was recorded, and three counted
steps show the usual spread. Of one rank alone: its first or last collective takes a quarter of the window, and 20
times as long as each of the others."""
CLOCKS_UNKNOWN = "clocks cannot be compared"
"""A clock shares no matched collective with the first rank's."""
CLOCKS_ROUGH = "clocks are aligned only roughly"
"""Residual above the median collective."""
CLOCKS_OF_ONE_HOST = "ranks of one host seem to have several clocks: lateness is doubtful"
"""Most of their collectives ended on one rank before they began on another, over 1 ms before; one clock cannot show
that."""
UNMATCHED = "collectives cannot be matched across ranks"
"""`doubtful` for a named group, else a remark."""
METRICS_LINES = "training metrics have unreadable lines"
"""Lines of a rank's metrics that are cut off, no JSON, or have text where a number should be; they are left out."""
METRICS_CUT = "training metrics lack their last line"
"""A rank's file ends without the line that a training writes at its end: it was killed, still goes on, or the file
is cut."""
METRICS_UNREADABLE = "training metrics cannot be read"
"""The first line of a rank's metrics has an impossible value; the rank's numbers are left out."""
ENVIRONMENT_UNREADABLE = "the environment of a node cannot be read"
"""Its file is damaged: a comparison knows less of what differs."""
RECORD_UNREADABLE = "the run's record cannot be read"
"""`run.json` is damaged: the request, and the traces that should be there, are not known."""
SAMPLES_UNREADABLE = "the monitor's samples cannot be read"
"""Of one node."""
NCCL_UNREADABLE = "a log of NCCL cannot be read"
"""Of one process; the other logs are used."""
FOLDER_CLOSED = "a place could not be searched for traces"
"""It cannot be entered, or it was deleted during the search: traces in it are not in the answer."""
NO_MONITOR = "no monitor ran beside the training"
"""Of one node, on which the job ended: the monitor's folder there is empty."""
MONITOR_GAP = "the monitor has no samples of a part of the job"
"""With its times. A gap (`gaps_ns` of [MonitorDevice](#monitordevice)), or it recorded no end, and its last sample is
over 3 s and three periods before the job's end on its node: it died. `doubtful` if it missed profiled steps or these
are not known, else a remark."""
OTHER_GPUS = "the monitor's numbers are not exactly those of the job's GPUs"
"""A remark, of one node, in the monitor's words: a GPU of the job does not answer NVML; the variable that names the
job's GPUs names none, so that the node's GPUs are not sampled; the job has a slice of a GPU (MIG), and the numbers are
the whole board's; GPUs of several models, which CUDA and NVML may number differently. Not told of ranks on a CPU."""
BUSY = "others used the cores while this was measured"
"""Ranks on a CPU, and the monitor saw others use at least 10 % of the cores that the job may use, while these were
90 % full or fewer were left than there are ranks. Over the profiled steps if samples cover them, else the median of
the job's samples. Others: the machine's use minus the job's, minus the cores that the job may not use."""
CROWDED = "there are more ranks than cores"
"""Ranks on a CPU; each machine is counted once, also if it plays several nodes."""
RAN_OUT = "the training ran out of memory"
"""A rank's memory snapshot has a failed allocation: the rank, the place, and what held most."""
SNAPSHOT_UNREADABLE = "a memory snapshot cannot be read"
"""`memory/rank<R>.json` is no file, too long, or not of its form."""
SNAPSHOT_TWICE = "a memory snapshot is left out"
"""Another file has the same rank."""
SNAPSHOT_CUT = "the memory snapshot was cut off"
"""More blocks were made than are kept."""
SNAPSHOT_SLOW = "the profiled steps took longer than without --memory-snapshot"
"""Fewer than two optimizer steps come before them, so memory was recorded in them too: each operator took longer,
and traces show `PythonDispatchMode`."""
