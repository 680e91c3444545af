// Command bench measures on a running control plane. Counts come from the API server's audit log and are exact; times
// are the API server's, and are given as medians and as the 95th of 100.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

func main() {
	dir := flag.String("cluster", os.Getenv("SIGNALBOX_CLUSTER"), "folder that the control plane left, .cluster of the repository")
	out := flag.String("out", "bench/results", "folder for the results")
	jobs := flag.Int("jobs", 40, "TrainJobs in each run")
	rounds := flag.Int("rounds", 3, "runs of each kind, alternating")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctrl.SetLogger(zap.New(zap.WriteTo(os.Stderr)))
	if err := run(ctx, *dir, *out, *jobs, *rounds); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir, out string, jobs, rounds int) error {
	if dir == "" {
		return errors.New("which control plane? run me by make bench, or name its folder by --cluster")
	}
	if jobs < 1 || rounds < 1 {
		return fmt.Errorf("--jobs is %d and --rounds %d; both must be 1 or more", jobs, rounds)
	}
	g, err := newGround(ctx, dir)
	if err != nil {
		return err
	}
	result, err := gangs(ctx, g, jobs, rounds)
	if err != nil {
		return err
	}
	text := result.markdown()
	fmt.Print("\n" + text)
	return write(out, result, text)
}

// write leaves the result as a page and as JSON.
func write(out string, result *gangResult, text string) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	data, err := json.MarshalIndent(result, "", "  ")
	if err != nil {
		return err
	}
	base := filepath.Join(out, time.Now().Format(time.DateOnly)+"-gangs")
	if err := os.WriteFile(base+".json", append(data, '\n'), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(base+".md", []byte(text), 0o644); err != nil {
		return err
	}
	fmt.Printf("\nWritten to %s.md and .json.\n", base)
	return nil
}

// machine is what a result was measured on.
func machine() string { return fmt.Sprintf("%d cores, %s", runtime.NumCPU(), runtime.Version()) }
