// Command peer is a training process for tests on real nodes that need no PyTorch. This static program finds its peers
// by the environment that Kubeflow Trainer sets (PET_…) and takes steps together with them. It writes a checkpoint,
// reports its progress, and ends as its flags say.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		var code exitCode
		if errors.As(err, &code) {
			os.Exit(int(code))
		}
		os.Exit(1)
	}
}

// exitCode is an end that was asked for.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("ends with %d, as it was told to", int(c)) }

// options are the arguments.
type options struct {
	steps      int
	step       time.Duration
	checkpoint string        // folder; "" for none
	saves      time.Duration // how long it takes to save when it is told to end
	exit       int
	eat        int // MiB to fill
	report     bool
	dataset    string // file that must be there
}

func run(ctx context.Context, args []string) error {
	if len(args) == 2 && args[0] == "fetch" {
		return fetch(args[1])
	}
	if len(args) == 2 && args[0] == "relay" {
		return relay(ctx, args[1])
	}
	flags := flag.NewFlagSet("peer", flag.ContinueOnError)
	var o options
	flags.IntVar(&o.steps, "steps", 5, "steps to take with the peers")
	flags.DurationVar(&o.step, "step", 200*time.Millisecond, "how long one takes")
	flags.StringVar(&o.checkpoint, "checkpoint", "", "folder to keep the last step in")
	flags.DurationVar(&o.saves, "saves", 0, "how long it takes to save when it is told to end")
	flags.IntVar(&o.exit, "exit", 0, "code to end with after the last step")
	flags.IntVar(&o.eat, "eat", 0, "MiB of memory to fill before the first step")
	flags.BoolVar(&o.report, "report", false, "report progress to the Trainer after each step")
	flags.StringVar(&o.dataset, "dataset", "", "file that an initializer has written")
	if err := flags.Parse(args); err != nil {
		return err
	}
	t, err := newTrainee(o)
	if err != nil {
		return err
	}
	return t.train(ctx)
}

// fetch plays a dataset initializer: it writes the dataset, and a line for each time that it has run.
func fetch(file string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
		return err
	}
	out, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "fetched at %s\n", time.Now().UTC().Format(time.RFC3339Nano))
	return errors.Join(err, out.Close())
}

// trainee is one process of the training.
type trainee struct {
	options
	rank, nodes int
	master      string
	connections []net.Conn // of rank 0 to all others; of others to rank 0
	progress    *progress
}

func newTrainee(o options) (*trainee, error) {
	t := &trainee{options: o, nodes: 1}
	for name, to := range map[string]*int{"PET_NNODES": &t.nodes, "PET_NODE_RANK": &t.rank} {
		if text := os.Getenv(name); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			*to = n
		}
	}
	t.master = net.JoinHostPort(os.Getenv("PET_MASTER_ADDR"), os.Getenv("PET_MASTER_PORT"))
	if o.report && t.rank == 0 {
		var err error
		if t.progress, err = newProgress(); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (t *trainee) train(ctx context.Context) error {
	fmt.Printf("rank %d of %d, GPUs %q\n", t.rank, t.nodes, os.Getenv("NVIDIA_VISIBLE_DEVICES"))
	if t.dataset != "" {
		content, err := os.ReadFile(t.dataset)
		if err != nil {
			return err
		}
		fmt.Printf("dataset of %d bytes, fetched %d times\n", len(content), strings.Count(string(content), "\n"))
	}
	eaten := eat(t.eat)
	from, err := t.load()
	if err != nil {
		return err
	}
	if from > 0 {
		fmt.Printf("continues after step %d\n", from)
	}
	if err := t.meet(ctx); err != nil {
		return err
	}
	for step := from + 1; step <= t.steps; step++ {
		if err := t.take(ctx, step); err != nil {
			return err
		}
		if ctx.Err() != nil {
			fmt.Printf("told to end, saves after step %d\n", step)
			time.Sleep(t.saves)
			return t.save(step)
		}
	}
	fmt.Printf("done after step %d, %d MiB\n", t.steps, len(eaten))
	if t.exit != 0 {
		return exitCode(t.exit)
	}
	return nil
}

func eat(mebibytes int) [][]byte {
	all := make([][]byte, mebibytes)
	for i := range all {
		all[i] = make([]byte, 1<<20)
		for j := 0; j < len(all[i]); j += 4096 {
			all[i][j] = 1
		}
	}
	return all
}

// meet joins the peers: rank 0 waits for all others, which keep trying until it is there.
func (t *trainee) meet(ctx context.Context) error {
	if t.nodes == 1 {
		return nil
	}
	if t.rank > 0 {
		for {
			c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", t.master)
			if err == nil {
				t.connections = []net.Conn{c}
				return nil
			}
			if ctx.Err() != nil {
				return fmt.Errorf("meeting %s: %w", t.master, err)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	_, port, err := net.SplitHostPort(t.master)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return err
	}
	defer listener.Close()
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	for len(t.connections) < t.nodes-1 {
		c, err := listener.Accept()
		if err != nil {
			return fmt.Errorf("waiting for %d peers: %w", t.nodes-1-len(t.connections), err)
		}
		t.connections = append(t.connections, c)
	}
	return nil
}

// take takes a step and returns when every peer has: each tells rank 0, and rank 0 tells them all.
func (t *trainee) take(ctx context.Context, step int) error {
	select {
	case <-time.After(t.step):
	case <-ctx.Done():
	}
	line := fmt.Sprintf("%d\n", step)
	if t.rank > 0 {
		if err := tell(t.connections[0], line); err != nil {
			return err
		}
	}
	for _, c := range t.connections {
		if err := hear(c, line); err != nil {
			return err
		}
	}
	if t.rank == 0 {
		for _, c := range t.connections {
			if err := tell(c, line); err != nil {
				return err
			}
		}
	}
	fmt.Printf("step %d of %d\n", step, t.steps)
	if t.progress != nil {
		return t.progress.report(ctx, step*100/t.steps)
	}
	return nil
}

func tell(c net.Conn, line string) error {
	_, err := io.WriteString(c, line)
	return err
}

func hear(c net.Conn, want string) error {
	// A byte at a time: what follows belongs to the next step.
	got, err := bufio.NewReaderSize(io.LimitReader(c, int64(len(want))), 16).ReadString('\n')
	if err != nil {
		return fmt.Errorf("a peer is gone: %w", err)
	}
	if got != want {
		return fmt.Errorf("a peer is at step %q, not %q", got, want)
	}
	return nil
}

// load returns the step of the checkpoint, 0 where there is none.
func (t *trainee) load() (int, error) {
	if t.checkpoint == "" {
		return 0, nil
	}
	content, err := os.ReadFile(filepath.Join(t.checkpoint, "step"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var step int
	return step, json.Unmarshal(content, &step)
}

// save writes the checkpoint; one process does, for all.
func (t *trainee) save(step int) error {
	if t.checkpoint == "" || t.rank > 0 {
		return nil
	}
	if err := os.MkdirAll(t.checkpoint, 0o777); err != nil {
		return err
	}
	whole := filepath.Join(t.checkpoint, "step")
	if err := os.WriteFile(whole+".part", strconv.AppendInt(nil, int64(step), 10), 0o666); err != nil {
		return err
	}
	if err := os.Rename(whole+".part", whole); err != nil {
		return err
	}
	fmt.Printf("saved step %d\n", step)
	return nil
}
