package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	trainerapi "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/signalbox-dev/signalbox/examples/training"
)

// runReal trains for real: it submits the TrainJob of examples/training on real nodes, and prints what its first rank
// prints, until it has ended.
func runReal(ctx context.Context, dir string, keep bool) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	c, err := connect(kubeconfig)
	if err != nil {
		return err
	}
	fmt.Println("2 real nodes of 4 simulated GPUs; Kueue, JobSet and Signalbox run as pods; " +
		"a TrainJob of two PyTorch processes (examples/training).")
	if err := submitReal(ctx, c); err != nil {
		return err
	}
	tj := &trainerapi.TrainJob{ObjectMeta: metav1.ObjectMeta{Namespace: "research", Name: "regression"}}
	first, err := awaitRank(ctx, c, tj)
	if err != nil {
		return err
	}
	fmt.Printf("%s was admitted and started; its first rank runs on %s:\n", tj.Name, first.Spec.NodeName)
	if err := printLogs(ctx, kubeconfig, first); err != nil {
		return err
	}
	if err := poll(ctx, func() (bool, error) {
		err := c.Get(ctx, client.ObjectKeyFromObject(tj), tj)
		if failed := apimeta.FindStatusCondition(tj.Status.Conditions, trainerapi.TrainJobFailed); err == nil &&
			failed != nil && failed.Status == metav1.ConditionTrue {
			return false, errors.New(failed.Message)
		}
		return apimeta.IsStatusConditionTrue(tj.Status.Conditions, trainerapi.TrainJobComplete), err
	}); err != nil {
		return fmt.Errorf("TrainJob %s did not end well: %w", tj.Name, err)
	}
	fmt.Printf("%s is complete, %s after its submission.\n", tj.Name,
		time.Since(tj.CreationTimestamp.Time).Round(time.Second))
	if keep {
		fmt.Printf("\nThe nodes stay up. Look around:\n  export KUBECONFIG=%s\n  kubectl get nodes,pods -A\n"+
			"  kubectl -n research logs %s\nand end it with: make cluster-down\n", kubeconfig, first.Name)
	}
	return nil
}

// submitReal makes what kubectl apply -k examples/training makes.
func submitReal(ctx context.Context, c client.Client) error {
	script, err := training.Files.ReadFile("train.py")
	if err != nil {
		return err
	}
	for _, file := range []string{"queues.yaml", "runtime.yaml", "trainjob.yaml"} {
		if file == "runtime.yaml" { // its namespace is there now
			if err := c.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "research", Name: "train"},
				Data: map[string]string{"train.py": string(script)}}); err != nil {
				return err
			}
		}
		if err := createFrom(ctx, c, training.Files, file); err != nil {
			return err
		}
	}
	return nil
}

// awaitRank waits for the pod of the first rank to run, and says what the TrainJob waits for meanwhile.
func awaitRank(ctx context.Context, c client.Client, tj *trainerapi.TrainJob) (*corev1.Pod, error) {
	var found *corev1.Pod
	err := poll(ctx, func() (bool, error) {
		var pods corev1.PodList
		if err := c.List(ctx, &pods, client.InNamespace(tj.Namespace),
			client.MatchingLabels{jobset.JobSetNameKey: tj.Name, "batch.kubernetes.io/job-completion-index": "0"}); err != nil {
			return false, err
		}
		for i, p := range pods.Items {
			if p.Status.Phase != corev1.PodPending {
				found = &pods.Items[i]
			}
		}
		return found != nil, nil
	})
	if err != nil {
		return nil, fmt.Errorf("TrainJob %s did not start: %w", tj.Name, err)
	}
	return found, nil
}

// printLogs prints what a pod prints, until it ends.
func printLogs(ctx context.Context, kubeconfig string, p *corev1.Pod) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	stream, err := clients.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{Follow: true}).Stream(ctx)
	if err != nil {
		return fmt.Errorf("logs of %s: %w", p.Name, err)
	}
	defer stream.Close()
	lines := bufio.NewScanner(stream)
	for lines.Scan() {
		fmt.Println("  " + strings.TrimRight(lines.Text(), "\r"))
	}
	return lines.Err()
}

// poll asks until the answer is yes, an error other than a passing one comes, or ctx is done.
func poll(ctx context.Context, ask func() (bool, error)) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := ask()
		if ok || err != nil && !apierrors.IsServerTimeout(err) && !apierrors.IsTooManyRequests(err) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
