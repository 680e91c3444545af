package main

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/cli-runtime/pkg/genericclioptions"
)

// clusterFlag is kubectl's --cluster, which names a cluster of the kubeconfig. With a context, as in worker-1=context,
// it says how a cluster of MultiKueue is reached.
type clusterFlag struct {
	of       **string
	contexts map[string]string
}

// String implements pflag.Value.
func (f clusterFlag) String() string { return "" }

// Type implements pflag.Value.
func (f clusterFlag) Type() string { return "string" }

// Set implements pflag.Value.
func (f clusterFlag) Set(value string) error {
	name, context, isContext := strings.Cut(value, "=")
	if isContext && (name == "" || context == "") {
		return errors.New("it must be the name of a cluster of MultiKueue and a context, such as worker-1=context")
	}
	if !isContext {
		*f.of = &value
		return nil
	}
	f.contexts[name] = context
	return nil
}

// opens returns how sessions with other contexts of the same kubeconfig are opened.
func opens(flags *genericclioptions.ConfigFlags, connect func(*genericclioptions.ConfigFlags) (*session, error),
) func(context string) (*session, error) {
	return func(context string) (*session, error) {
		known, err := flags.ToRawKubeConfigLoader().RawConfig()
		if err != nil {
			return nil, fmt.Errorf("reading the kubeconfig: %w", err)
		}
		if known.Contexts[context] == nil {
			return nil, fmt.Errorf("the kubeconfig has no context %q", context)
		}
		other := genericclioptions.NewConfigFlags(true)
		other.KubeConfig, other.Context, other.Timeout = flags.KubeConfig, &context, flags.Timeout
		other.Namespace, other.Impersonate, other.ImpersonateUID = flags.Namespace, flags.Impersonate, flags.ImpersonateUID
		other.ImpersonateGroup, other.ImpersonateUserExtra = flags.ImpersonateGroup, flags.ImpersonateUserExtra
		return connect(other)
	}
}
