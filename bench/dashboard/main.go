// Command dashboard runs the demo with a real Prometheus that scrapes it, asks it every query of the Grafana dashboard
// and of the alerts, and draws what comes back. It fails where a panel has nothing to show or an alert can't be asked.
// `make bench WHAT=dashboard` runs it; Grafana itself is not needed.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	configapi "github.com/signalbox-dev/signalbox/api/config/v1alpha1"
)

func main() {
	cluster := flag.String("cluster", os.Getenv("SIGNALBOX_CLUSTER"), "folder that the control plane left")
	prometheus := flag.String("prometheus", "prometheus", "Prometheus' program")
	demo := flag.String("demo", "bin/demo", "the demo's program")
	files := flag.String("files", "charts/signalbox/files", "folder of dashboard.json and alerts.yaml")
	out := flag.String("out", "docs/dashboard.png", "picture to draw")
	flag.Parse()
	if err := run(context.Background(), *cluster, *prometheus, *demo, *files, *out); err != nil {
		fmt.Fprintln(os.Stderr, "dashboard:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, cluster, program, demo, files, out string) error {
	if _, err := exec.LookPath(program); err != nil {
		return fmt.Errorf(
			"%w; install Prometheus (Debian: apt install prometheus), or name its program: make bench WHAT=dashboard "+
				"PROMETHEUS=/path/to/prometheus", err)
	}
	var board dashboard
	content, err := os.ReadFile(filepath.Join(files, "dashboard.json"))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(content, &board); err != nil {
		return fmt.Errorf("dashboard.json: %w", err)
	}
	p, stop, err := start(ctx, cluster, program)
	if err != nil {
		return err
	}
	defer stop()
	from := time.Now()
	cmd := exec.CommandContext(ctx, demo)
	cmd.Env = append(os.Environ(), "SIGNALBOX_CLUSTER="+cluster)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("the demo: %w", err)
	}
	to := time.Now()
	if err := p.names(ctx, board, filepath.Join(files, "alerts.yaml")); err != nil {
		return err
	}
	var empty []string
	drawn := make([][]series, len(board.Panels))
	for i, panel := range board.Panels {
		for _, target := range panel.Targets {
			found, err := p.ask(ctx, target, from, to)
			if err != nil {
				return fmt.Errorf("panel %q: %w", panel.Title, err)
			}
			drawn[i] = append(drawn[i], found...)
		}
		fmt.Printf("panel %-45q %2d queries, %2d series\n", panel.Title, len(panel.Targets), len(drawn[i]))
		if len(drawn[i]) == 0 {
			empty = append(empty, panel.Title)
		}
	}
	if len(empty) > 0 {
		return fmt.Errorf("nothing to show in %s", strings.Join(empty, ", "))
	}
	if err := p.askAlerts(ctx, filepath.Join(files, "alerts.yaml")); err != nil {
		return err
	}
	return paint(board, drawn, from, out)
}

// dashboard is what we read of Grafana's JSON.
type dashboard struct {
	Panels []struct {
		Title   string `json:"title"`
		GridPos struct{ X, Y, W, H int }
		Targets []target `json:"targets"`
	} `json:"panels"`
}

type target struct {
	Expr         string `json:"expr"`
	LegendFormat string `json:"legendFormat"`
}

// prometheus is a running one.
type prometheus struct{ address string }

// start runs a Prometheus that scrapes the manager of the control plane every second.
func start(ctx context.Context, cluster, program string) (*prometheus, func(), error) {
	content, err := os.ReadFile(filepath.Join(cluster, "config", "signalbox.yaml"))
	if err != nil {
		return nil, nil, err
	}
	config, err := configapi.Parse(content)
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "signalbox-prometheus-")
	if err != nil {
		return nil, nil, err
	}
	scrape := fmt.Sprintf(
		"global: {scrape_interval: 1s}\nscrape_configs:\n- job_name: signalbox\n  static_configs: [{targets: [%q]}]\n",
		config.Metrics.BindAddress)
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(scrape), 0o600); err != nil {
		return nil, nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	p := &prometheus{address: l.Addr().String()}
	if err := l.Close(); err != nil {
		return nil, nil, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.CommandContext(ctx, program, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+p.address)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	stop := func() {
		if err := cmd.Process.Kill(); err == nil {
			_ = cmd.Wait() // it was killed
		}
		os.RemoveAll(dir)
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); <-tick.C {
		now := time.Now()
		if found, err := p.ask(ctx, target{Expr: "up == 1"}, now.Add(-time.Second), now); err == nil && len(found) > 0 {
			return p, stop, nil
		}
	}
	text, _ := os.ReadFile(log.Name())
	stop()
	return nil, nil, fmt.Errorf("Prometheus has not scraped the manager within a minute:\n%s", text)
}

// series is a line of a panel. Times are seconds.
type series struct {
	name   string
	times  []float64
	values []float64
}

// ask asks a query of the dashboard for a span of time.
func (p *prometheus) ask(ctx context.Context, t target, from, to time.Time) ([]series, error) {
	expr := strings.NewReplacer("$__rate_interval", "10s", "$job", ".*").Replace(t.Expr)
	result, err := p.get(ctx, "query_range", url.Values{
		"query": {expr}, "start": {seconds(from)}, "end": {seconds(to)}, "step": {"1"},
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", expr, err)
	}
	var found []series
	for _, r := range result {
		s := series{name: t.LegendFormat}
		for label, value := range r.Metric {
			s.name = strings.ReplaceAll(s.name, "{{"+label+"}}", value)
		}
		for _, point := range r.Values {
			text, _ := point[1].(string)
			at, _ := point[0].(float64)
			value, err := strconv.ParseFloat(text, 64)
			if err != nil || value != value { // NaN: no observation in that time
				continue
			}
			s.times, s.values = append(s.times, at), append(s.values, value)
		}
		if len(s.values) > 0 {
			found = append(found, s)
		}
	}
	return found, nil
}

func seconds(t time.Time) string {
	return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64)
}

// metricName is what in an expression may be a metric of the manager. Two it can't have here: the API server's own, and
// those of leader election, without which the demo runs.
var metricName = regexp.MustCompile(`\b(?:signalbox|controller_runtime|workqueue|rest_client|process)_[a-z_]+`)

// names refuses a dashboard or an alert that names a metric which the manager doesn't serve.
func (p *prometheus) names(ctx context.Context, board dashboard, alerts string) error {
	content, err := os.ReadFile(alerts)
	if err != nil {
		return err
	}
	text := string(content)
	for _, panel := range board.Panels {
		for _, t := range panel.Targets {
			text += t.Expr + "\n"
		}
	}
	names := metricName.FindAllString(text, -1)
	for _, name := range names {
		now := time.Now()
		if found, err := p.get(ctx, "query", url.Values{"query": {name}, "time": {seconds(now)}}); err != nil ||
			len(found) == 0 {
			return errors.Join(fmt.Errorf("the manager serves no metric %s", name), err)
		}
	}
	fmt.Printf("%d uses of the manager's metrics, all of which it serves\n", len(names))
	return nil
}

// askAlerts asks the expression of every alert.
func (p *prometheus) askAlerts(ctx context.Context, path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	if err := yaml.Unmarshal(content, &rules); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			firing, err := p.get(ctx, "query", url.Values{"query": {r.Expr}})
			if err != nil {
				return fmt.Errorf("alert %s: %w", r.Alert, err)
			}
			fmt.Printf("alert %-45q fires: %v\n", r.Alert, len(firing) > 0)
		}
	}
	return nil
}

type result struct {
	Metric map[string]string
	Values [][2]any
}

func (p *prometheus) get(ctx context.Context, path string, query url.Values) ([]result, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.address+"/api/v1/"+path+"?"+query.Encode(),
		nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Status, Error string
		Data          struct{ Result []result }
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("%s: %w", response.Status, err)
	}
	if answer.Status != "success" {
		return nil, errors.New(answer.Error)
	}
	return answer.Data.Result, nil
}
