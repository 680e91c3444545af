// Command picture draws what a user sees on a terminal: `kubectl get trainjobs -w` while a TrainJob is queued, starts,
// is preempted, moves to another flavor and ends. It runs kubectl on a control plane of simulated nodes and draws each
// line that kubectl prints at the time at which it came. Then it draws the views of kubectl signalbox dashboard, as
// Chromium shows them. `make picture` runs it.
package main

import (
	"bufio"
	"context"
	"embed"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// timeout is that of the whole run.
const timeout = 3 * time.Minute

//go:embed manifests
var manifests embed.FS

func main() {
	out := flag.String("out", "docs/run.svg", "file to write")
	kubectl := flag.String("kubectl", "kubectl", "kubectl to run; KUBECONFIG names the control plane")
	pages := flag.String("pages", "docs", "folder to write the pictures of the page to")
	plugin := flag.String("plugin", "kubectl-signalbox", "plugin that serves the page")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	s := &scene{kubectl: *kubectl, complete: map[string]bool{}}
	lines, err := s.record(ctx)
	if err == nil {
		err = os.WriteFile(*out, draw(lines), 0o644)
	}
	if err == nil {
		err = drawPages(ctx, s, *plugin, *pages)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

// line is a line of the terminal, and when it came.
type line struct {
	at   time.Duration
	text string
}

// scene is what is recorded.
type scene struct {
	kubectl  string
	begin    time.Time
	lines    []line
	urgent   bool // bert was submitted
	complete map[string]bool
}

// record runs the scene: resnet is submitted, bert preempts it as soon as it runs, and both complete.
func (s *scene) record(ctx context.Context) ([]line, error) {
	if err := s.apply(ctx, "queue.yaml"); err != nil {
		return nil, err
	}
	s.begin = time.Now()
	s.lines = []line{{text: "$ kubectl apply -f resnet.yaml"}, {text: "$ kubectl get trainjobs -w"}}
	if err := s.apply(ctx, "resnet.yaml"); err != nil {
		return nil, err
	}
	watch := exec.CommandContext(ctx, s.kubectl, "-n", "vision", "get", "trainjobs", "-w")
	watch.Stderr = os.Stderr
	printed, err := watch.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := watch.Start(); err != nil {
		return nil, err
	}
	defer func() {
		_ = watch.Process.Kill() // it watches until it is killed
		_ = watch.Wait()
	}()
	for scanner := bufio.NewScanner(printed); len(s.complete) < 2 && scanner.Scan(); {
		if err := s.show(ctx, scanner.Text()); err != nil {
			return nil, err
		}
	}
	if len(s.complete) < 2 {
		return nil, fmt.Errorf("kubectl ended, or %s passed, before both TrainJobs were complete", timeout)
	}
	return s.lines, nil
}

// show notes a line that kubectl has printed, and submits bert when resnet runs.
func (s *scene) show(ctx context.Context, text string) error {
	fmt.Println(text)
	if s.lines[len(s.lines)-1].text != text {
		s.lines = append(s.lines, line{time.Since(s.begin), text})
	}
	fields := strings.Fields(text)
	if len(fields) < 2 {
		return nil
	}
	switch name, state := fields[0], fields[1]; {
	case state == "Failed":
		return fmt.Errorf("%s failed", name)
	case state == "Complete":
		s.complete[name] = true
	case state == "Running" && name == "resnet" && !s.urgent:
		s.urgent = true
		s.lines = append(s.lines, line{time.Since(s.begin), "  (another terminal: kubectl apply -f bert.yaml)"})
		return s.apply(ctx, "bert.yaml")
	}
	return nil
}

// apply applies a manifest of this folder.
func (s *scene) apply(ctx context.Context, name string) error {
	content, err := manifests.Open("manifests/" + name)
	if err != nil {
		return err
	}
	defer content.Close()
	cmd := exec.CommandContext(ctx, s.kubectl, "apply", "-f", "-")
	cmd.Stdin = io.Reader(content)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl apply of %s: %w\n%s", name, err, out)
	}
	return nil
}

// states are the colours of states; a state without one is white.
var states = map[string]string{
	"Queued": "#e5c07b", "Starting": "#61afef", "Running": "#98c379", "Stopping": "#e06c75", "Complete": "#56b6c2",
}

const (
	// longest is the pause that is drawn at most: readers wait for no training.
	longest             = 1500 * time.Millisecond
	lineHeight, padding = 19, 14
	width               = 660
)

// draw returns an SVG in which the lines appear one after the other.
func draw(lines []line) []byte {
	var b strings.Builder
	height := 2*padding + len(lines)*lineHeight
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%[1]d" height="%[2]d" viewBox="0 0 %[1]d %[2]d" role="img">
<title>kubectl get trainjobs -w: resnet is queued, runs, is preempted by bert, and runs on another flavor</title>
<style>
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #dcdfe4; white-space: pre }
@media (prefers-reduced-motion: no-preference) {
  .l { opacity: 0; animation: appear 0.1s forwards }
  @keyframes appear { to { opacity: 1 } }
}
</style>
<rect width="%[1]d" height="%[2]d" rx="6" fill="#282c34"/>
`, width, height)
	shown := 500 * time.Millisecond
	for i, l := range lines {
		if i > 0 {
			shown += min(l.at-lines[i-1].at, longest)
		}
		fmt.Fprintf(&b, "<text class=\"l\" x=\"%d\" y=\"%d\" style=\"animation-delay: %.1fs\">%s</text>\n", padding,
			padding+(i+1)*lineHeight-5, shown.Seconds(), coloured(l.text))
	}
	b.WriteString("</svg>\n")
	return []byte(b.String())
}

var escape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// coloured is a line of the table with its state in colour.
func coloured(text string) string {
	fields := strings.Fields(text)
	if len(fields) < 2 || states[fields[1]] == "" || slices.Contains([]string{"$", "NAME"}, fields[0]) {
		return escape.Replace(text)
	}
	before, after, _ := strings.Cut(text, fields[1])
	return fmt.Sprintf(`%s<tspan fill="%s">%s</tspan>%s`, escape.Replace(before), states[fields[1]],
		escape.Replace(fields[1]), escape.Replace(after))
}
