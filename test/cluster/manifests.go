package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// applier puts manifests into the API server as the administrator.
type applier struct {
	client dynamic.Interface
	mapper *restmapper.DeferredDiscoveryRESTMapper
}

func newApplier(config *rest.Config) (*applier, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	disco, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	return &applier{
		client: client,
		mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco)),
	}, nil
}

func (a *applier) apply(ctx context.Context, objects ...*unstructured.Unstructured) error {
	for _, o := range objects {
		mapping, err := a.mapper.RESTMapping(o.GroupVersionKind().GroupKind(), o.GroupVersionKind().Version)
		if err != nil {
			return fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
		}
		var resource dynamic.ResourceInterface = a.client.Resource(mapping.Resource)
		if mapping.Scope.Name() == apimeta.RESTScopeNameNamespace {
			resource = a.client.Resource(mapping.Resource).Namespace(o.GetNamespace())
		}
		data, err := o.MarshalJSON()
		if err != nil {
			return err
		}
		force := true
		if _, err := resource.Patch(ctx, o.GetName(), types.ApplyPatchType, data, metav1.PatchOptions{
			FieldManager: "cluster", Force: &force,
		}); err != nil {
			return fmt.Errorf("applying %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

// establish applies CRDs and waits until all are served: a manager that finds no kind exits.
func (a *applier) establish(ctx context.Context, crds ...*unstructured.Unstructured) error {
	if err := a.apply(ctx, crds...); err != nil {
		return err
	}
	for _, crd := range crds {
		mapping, err := a.mapper.RESTMapping(crd.GroupVersionKind().GroupKind())
		if err != nil {
			return err
		}
		err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 30*time.Second, true,
			func(ctx context.Context) (bool, error) {
				got, err := a.client.Resource(mapping.Resource).Get(ctx, crd.GetName(), metav1.GetOptions{})
				if err != nil {
					return false, err
				}
				// Before its first condition it has none, or null.
				value, _, err := unstructured.NestedFieldNoCopy(got.Object, "status", "conditions")
				if err != nil {
					return false, err
				}
				conditions, _ := value.([]any)
				for _, c := range conditions {
					if c, ok := c.(map[string]any); ok && c["type"] == "Established" && c["status"] == "True" {
						return true, nil
					}
				}
				return false, nil
			})
		if err != nil {
			return fmt.Errorf("CRD %s is not established: %w", crd.GetName(), err)
		}
	}
	a.mapper.Reset()
	return nil
}

// readManifests reads every YAML file that the pattern matches, in the order of their names.
func readManifests(pattern string) ([]*unstructured.Unstructured, error) {
	files, err := filepath.Glob(pattern)
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no manifest at %s: %w", pattern, fs.ErrNotExist)
	}
	sort.Strings(files)
	var objects []*unstructured.Unstructured
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		read, err := decode(content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		objects = append(objects, read...)
	}
	return objects, nil
}

func decode(content []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	for {
		o := &unstructured.Unstructured{}
		if err := decoder.Decode(o); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, err
		}
		if o.GetKind() != "" && o.GetKind() != "Kustomization" {
			objects = append(objects, o)
		}
	}
}

func ofKind(objects []*unstructured.Unstructured, suffix string) []*unstructured.Unstructured {
	var some []*unstructured.Unstructured
	for _, o := range objects {
		if strings.HasSuffix(o.GetKind(), suffix) {
			some = append(some, o)
		}
	}
	return some
}

// toLoopback renames webhook configurations after the component that serves them and sends their calls to its port.
func toLoopback(objects []*unstructured.Unstructured, component string, port int, ca []byte) error {
	for _, o := range objects {
		webhooks, _, err := unstructured.NestedSlice(o.Object, "webhooks")
		if err != nil {
			return err
		}
		for _, w := range webhooks {
			webhook := w.(map[string]any)
			path, _, err := unstructured.NestedString(webhook, "clientConfig", "service", "path")
			if err != nil {
				return err
			}
			webhook["clientConfig"] = loopback(path, port, ca)
		}
		if err := unstructured.SetNestedSlice(o.Object, webhooks, "webhooks"); err != nil {
			return err
		}
		o.SetNamespace("")
		o.SetName(component + "-" + strings.ToLower(strings.TrimSuffix(o.GetKind(), "WebhookConfiguration")))
	}
	return nil
}

// runAs makes objects take a user for the manager.
func runAs(o *unstructured.Unstructured, user string) error {
	data, err := o.MarshalJSON()
	if err != nil {
		return err
	}
	return o.UnmarshalJSON(bytes.ReplaceAll(data, []byte(installedAs), []byte(user)))
}

// conversions are the paths of conversion webhooks by the names of the CRDs that a kustomization gives one to. Those of
// other CRDs, which have several versions too, need none, and nobody serves them.
func conversions(folder string) (map[string]string, error) {
	content, err := os.ReadFile(filepath.Join(folder, "kustomization.yaml"))
	if err != nil {
		return nil, err
	}
	var kustomization struct {
		Patches []struct{ Path string }
	}
	if err := yaml.Unmarshal(content, &kustomization); err != nil {
		return nil, fmt.Errorf("kustomization of %s: %w", folder, err)
	}
	paths := map[string]string{}
	for _, p := range kustomization.Patches {
		patches, err := readManifests(filepath.Join(folder, p.Path))
		if err != nil {
			return nil, err
		}
		for _, o := range patches {
			path, found, err := unstructured.NestedString(o.Object, "spec", "conversion", "webhook", "clientConfig", "service",
				"path")
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.Path, err)
			}
			if found {
				paths[o.GetName()] = path
			}
		}
	}
	return paths, nil
}

// convertOnLoopback sends a CRD's conversion to the component's port.
func convertOnLoopback(crd *unstructured.Unstructured, path string, port int, ca []byte) error {
	return unstructured.SetNestedMap(crd.Object, map[string]any{
		"strategy": "Webhook",
		"webhook": map[string]any{
			"conversionReviewVersions": []any{"v1"},
			"clientConfig":             loopback(path, port, ca),
		},
	}, "spec", "conversion")
}

func loopback(path string, port int, ca []byte) map[string]any {
	u := url.URL{Scheme: "https", Host: hostPort(port), Path: path}
	return map[string]any{"url": u.String(), "caBundle": base64.StdEncoding.EncodeToString(ca)}
}
