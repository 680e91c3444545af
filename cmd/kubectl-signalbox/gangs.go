package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	utilslices "sigs.k8s.io/kueue/pkg/util/slices"

	"github.com/signalbox-dev/signalbox/trainer/gang"
)

const deleteGangsLong = `Delete the Workloads and PodGroups of scheduling.k8s.io/v1alpha2 that Signalbox has made, before Kubernetes is
upgraded from 1.36 to 1.37, which can't read them.

Nothing that runs is touched. The pods of a gang go on, or go on waiting; when the manager is back after the upgrade, it
makes their groups again in the version that is served then. Stop it before: it would make them again at once.

  kubectl -n signalbox-system scale deployment signalbox --replicas=0
  kubectl signalbox delete-gangs
  (upgrade Kubernetes)
  kubectl -n signalbox-system scale deployment signalbox --replicas=2`

// leaseName is of the Lease that the leader of the managers holds (cmd/signalbox).
const leaseName = "signalbox.signalbox.dev"

func deleteGangsCommand(c *cli) *cobra.Command {
	var manager string
	cmd := &cobra.Command{
		Use: "delete-gangs", Short: "Delete the groups of running gangs before Kubernetes is upgraded from 1.36 to 1.37",
		Long: deleteGangsLong, Args: cobra.NoArgs,
		RunE: connected(c, func(ctx context.Context, s *session, _ []string) error {
			return deleteGangs(ctx, s.client, manager, time.Now(), s.streams)
		}),
	}
	cmd.Flags().StringVar(&manager, "manager-namespace", "signalbox-system", "the namespace that the manager runs in")
	return cmd
}

// deleteGangs deletes what Kubernetes 1.37 can't read. It refuses while a manager runs in the namespace.
func deleteGangs(
	ctx context.Context, c client.Client, manager string, now time.Time, streams genericiooptions.IOStreams,
) error {
	if err := checkStopped(ctx, c, manager, now); err != nil {
		return err
	}
	named := func(o *metav1.PartialObjectMetadata) string {
		return fmt.Sprintf("%s %s/%s", strings.ToLower(o.Kind), o.Namespace, o.Name)
	}
	count := 0
	remaining, err := gang.DeleteOutdated(ctx, c, func(o *metav1.PartialObjectMetadata) {
		fmt.Fprintln(streams.Out, named(o), "deleted")
		count++
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(streams.ErrOut, "%d deleted\n", count)
	if names := utilslices.Map(remaining, named); len(names) > 0 {
		return fmt.Errorf("%d are left that are not Signalbox's or have finalizers of others, and Kubernetes 1.37 can't "+
			"read them; have their owners delete them: %s", len(names), strings.Join(names, ", "))
	}
	return nil
}

// checkStopped returns an error while a manager holds its Lease.
func checkStopped(ctx context.Context, c client.Client, namespace string, now time.Time) error {
	var lease coordinationv1.Lease
	err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: leaseName}, &lease)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("looking for a running manager: %w", err)
	}
	holder := ptr.Deref(lease.Spec.HolderIdentity, "")
	held := time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 0)) * time.Second
	if holder == "" || lease.Spec.RenewTime == nil || now.After(lease.Spec.RenewTime.Add(held)) {
		return nil
	}
	return errors.New("the manager runs (Lease " + namespace + "/" + leaseName + " is held by " + holder +
		"), and would make the groups again at once; stop it first: kubectl -n " + namespace +
		" scale deployment signalbox --replicas=0")
}
