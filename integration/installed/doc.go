// Package installed finds out what a cluster has: the releases of Kubernetes, Kueue and JobSet, Kueue's configuration
// and feature gates, and the Trainer. The manager runs with it; kubectl signalbox doctor and version print it. It
// doesn't know jobframework.
package installed
