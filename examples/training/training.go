// Package training has the files of the example that trains for real, for the demo and the tests.
package training

import "embed"

// Files are the manifests and the script of the example.
//
//go:embed queues.yaml runtime.yaml trainjob.yaml train.py
var Files embed.FS
