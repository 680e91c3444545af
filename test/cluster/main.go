// Command cluster builds and runs a real Kubernetes control plane from Go modules: etcd, kube-apiserver,
// kube-controller-manager, kube-scheduler, KWOK, Kueue, JobSet and, by profile, Kubeflow Trainer and Signalbox.
// The demo, the end-to-end tests and the benchmarks all run on it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/signalbox-dev/signalbox/test/cluster/machine"
)

const usage = `cluster runs a real control plane on loopback.

  cluster build [--profile P]                build what the profile needs
  cluster up    [--profile P]                start in the background; a second call replaces the first
  cluster down                               stop it
  cluster run   [--profile P] -- CMD ARG...  start, run CMD with its environment, stop; exits as CMD does
  cluster restart|stop|start|kill COMPONENT  act on one component of a running control plane
  cluster cut|stall|flow COMPONENT           with --relayed: close its connections to the API server; delay responses and
                                             events on about half of them; end the delay
  cluster upgrade trainer|kubernetes         put the next Kubeflow Trainer, or that of --next-kubernetes, in the place of
                                             the one that runs
  cluster disable|enable gangs               restart Kubernetes without or with the Workload and PodGroup API
  cluster isolate|reconnect ADDRESS          on real nodes: drop what the control plane sends to a pod
  cluster fill|empty etcd                    raise and clear the alarm of a full disk
  cluster break|repair gpus-1|images-1       on real nodes: have the device plugin of node-1 reject every pod; remove the
                                             image signalbox.test/peer:1 from it

Profiles: ` + "%s" + `
Flags:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:])
	var command commandError
	switch {
	case err == nil:
	case errors.As(err, &command):
		os.Exit(command.ExitCode()) // the command has said why
	default:
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

// options are what the flags say.
type options struct {
	root, profile string
	relayed       bool
	releases      asked
}

// add defines the flags.
func (o *options) add(flags *flag.FlagSet) {
	flags.StringVar(&o.root, "root", ".", "root of the Signalbox repository")
	flags.StringVar(&o.profile, "profile", defaultProfile, "what runs beside Kubernetes, Kueue and JobSet")
	flags.BoolVar(&o.relayed, "relayed", false,
		"connect every component to the API server by a relay, for cut, stall and flow")
	r := &o.releases
	flags.StringVar(&r.kubernetes, "kubernetes", "", "release of Kubernetes, such as 1.37 (default 1.36)")
	flags.StringVar(&r.next, "next-kubernetes", "", "release that upgrade kubernetes puts in its place (default none)")
	flags.StringVar(&r.kueue, "kueue", "", "release of Kueue, such as 0.18 (default 0.19)")
	flags.StringVar(&r.jobset, "jobset", "", "release of JobSet, such as 0.11 (default 0.12)")
	flags.StringVar(&r.gates, "gates", "", "further feature gates of Kubernetes, such as CompositePodGroup=true")
	flags.StringVar(&r.apis, "apis", "",
		"further versions of APIs that Kubernetes serves, such as scheduling.k8s.io/v1alpha3=true")
	flags.Usage = func() {
		fmt.Fprintf(flags.Output(), usage, strings.Join(profileNames(), ", "))
		flags.PrintDefaults()
	}
}

// choose returns the profile that the options name, and an error where they don't go together.
func (o *options) choose() (profile, error) {
	p, err := profileNamed(o.profile)
	if err != nil {
		return p, err
	}
	if p.versions, err = o.releases.versions(); err != nil {
		return p, err
	}
	if p.nodes > 0 && !p.versions.isDefault() {
		return p, fmt.Errorf("profile %s has one store of images, of the default releases; take another profile for others",
			p.name)
	}
	if p.relayed = o.relayed; p.relayed && p.nodes > 0 {
		return p, fmt.Errorf("on profile %s managers are pods, which no relay connects; use --relayed with another", p.name)
	}
	return p, nil
}

func run(ctx context.Context, args []string) error {
	if done, err := inner(ctx, args); done {
		return err
	}
	o, flags := options{}, flag.NewFlagSet("cluster", flag.ContinueOnError)
	o.add(flags)
	if len(args) == 0 {
		flags.Usage()
		return errors.New("which command?")
	}
	if err := flags.Parse(args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	p, err := o.choose()
	if err != nil {
		return err
	}
	dir, err := filepath.Abs(o.root)
	if err != nil {
		return err
	}
	l, err := newLayout(dir)
	if err != nil {
		return err
	}
	command := args[0]
	if p.nodes > 0 && !machine.Inside() && (command == "run" || command == "serve") {
		return contain(ctx, l, p, args)
	}
	switch command {
	case "build":
		_, err = buildAll(ctx, l, p)
	case "up":
		err = up(ctx, l, p)
	case "serve":
		err = serve(ctx, l, p)
	case "down":
		err = down(l)
	case "run":
		err = runCommand(ctx, l, p, flags.Args())
	case "restart", "stop", "start", "kill", "cut", "stall", "flow", "upgrade", "disable", "enable", "isolate",
		"reconnect", "fill", "empty", "break", "repair":
		if flags.NArg() != 1 {
			return fmt.Errorf("%s takes the name of one component", command)
		}
		err = callControl(l, command, flags.Arg(0))
	default:
		flags.Usage()
		err = fmt.Errorf("unknown command %q", command)
	}
	return err
}

// inner runs the commands that this program starts itself with; done is false where it is none of them.
func inner(ctx context.Context, args []string) (done bool, err error) {
	if done, err := machine.Main(args); done {
		return true, err
	}
	if len(args) != 2 {
		return false, nil
	}
	switch args[0] {
	case "fill":
		return true, fill(ctx, args[1])
	case "gpus":
		return true, serveGPUs(ctx, args[1])
	}
	return false, nil
}
