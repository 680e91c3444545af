package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
)

// source is where the commits are.
const source = "https://github.com/signalbox-dev/signalbox"

// predicate says of what and how a release was built, by https://slsa.dev/spec/v1.0/provenance. It has no times: the
// same commit gives the same bytes.
type predicate struct {
	BuildDefinition struct {
		BuildType            string            `json:"buildType"`
		ExternalParameters   map[string]string `json:"externalParameters"`
		InternalParameters   map[string]string `json:"internalParameters"`
		ResolvedDependencies []descriptor      `json:"resolvedDependencies"`
	} `json:"buildDefinition"`
	RunDetails struct {
		Builder struct {
			ID string `json:"id"`
		} `json:"builder"`
	} `json:"runDetails"`
}

type descriptor struct {
	URI    string            `json:"uri"`
	Digest map[string]string `json:"digest"`
}

// provenance writes the predicate that the images and charts of a release are attested with.
func provenance(dist, version, commit string) error {
	var p predicate
	p.BuildDefinition.BuildType = source + "/blob/main/docs/release.md"
	p.BuildDefinition.ExternalParameters = map[string]string{"version": version, "target": "make release image"}
	p.BuildDefinition.InternalParameters = map[string]string{"go": runtime.Version()}
	p.BuildDefinition.ResolvedDependencies = []descriptor{
		{URI: "git+" + source, Digest: map[string]string{"gitCommit": commit}}}
	p.RunDetails.Builder.ID = source + "/blob/main/hack/release.sh"
	content, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dist, "provenance.json"), append(content, '\n'), 0o644)
}
