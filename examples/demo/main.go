// Command demo shows the main job on a running control plane: suspended TrainJobs queue for GPUs, Kueue admits them,
// Signalbox starts each with one write on the flavor that it was given, and they run and finish on simulated nodes.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/signalbox-dev/signalbox/test/audit"
)

// timeout is that of the whole demo.
const timeout = 170 * time.Second

func main() {
	dir := flag.String("cluster", os.Getenv("SIGNALBOX_CLUSTER"),
		"folder that the control plane left, .cluster of the repository")
	keep := flag.Bool("keep", false, "print at the end how to look around")
	real := flag.Bool("real", false, "train for real, on the nodes of profile node")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if *dir == "" {
		fmt.Fprintln(os.Stderr, "demo: which control plane? run me by make demo, or name its folder by --cluster")
		os.Exit(2)
	}
	show := run
	if *real {
		show = runReal
	}
	if err := show(ctx, *dir, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string, keep bool) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ctrl.SetLogger(zap.New(zap.WriteTo(os.Stderr)))
	admin, err := connect(filepath.Join(dir, "kubeconfig"))
	if err != nil {
		return err
	}
	user, err := connect(filepath.Join(dir, "user.kubeconfig"))
	if err != nil {
		return err
	}
	fmt.Println("16 simulated nodes of 8 GPUs, half of them a100, half h100; a ClusterQueue with both flavors; " +
		"20 TrainJobs of two teams.")
	if err := prepare(ctx, admin); err != nil {
		return err
	}
	log := audit.Log(dir)
	from, err := audit.End(log)
	if err != nil {
		return err
	}
	submitted := make(chan error, 1)
	go func() { submitted <- submit(ctx, user) }()
	board := newBoard(os.Stdout)
	if err := follow(ctx, admin, board, submitted); err != nil {
		return err
	}
	if err := summarize(os.Stdout, board, log, from); err != nil {
		return err
	}
	if keep {
		fmt.Printf("\nThe control plane stays up. Look around:\n"+
			"  export KUBECONFIG=%s\n"+
			"  kubectl get trainjobs,workloads.kueue.x-k8s.io -A\n"+
			"  kubectl describe clusterqueue gpus\n"+
			"  kubectl -n team-a get trainjob team-a-torch-1 -o yaml\n"+
			"or see it in the browser:\n"+
			"  bin/kubectl-signalbox dashboard\n"+
			"and end it with: make cluster-down\n", filepath.Join(dir, "kubeconfig"))
	}
	return nil
}

func connect(kubeconfig string) (client.Client, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("%w; is the control plane up? make cluster starts it", err)
	}
	config.QPS, config.Burst = 100, 200
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, trainerapi.AddToScheme, kueue.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	return client.New(config, client.Options{Scheme: scheme})
}

// follow draws the board until every TrainJob that can finish has finished.
func follow(ctx context.Context, c client.Client, b *board, submitted <-chan error) error {
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	all := false
	for {
		select {
		case err := <-submitted:
			if err != nil {
				return fmt.Errorf("submitting: %w", err)
			}
			all = true
		case <-tick.C:
			if err := b.refresh(ctx, c); err != nil {
				return err
			}
			b.draw()
			if all && b.done() {
				return nil
			}
		case <-ctx.Done():
			b.draw()
			return fmt.Errorf("the TrainJobs did not finish in time: %w; the logs are in .cluster/log", ctx.Err())
		}
	}
}
