// Package integration is TrainJob as Kueue's jobframework sees it: the reconciler and the webhook. It alone knows
// jobframework, which is no stable API. It reads, asks overrides, podsets and admission what follows, and lets store
// write.
package integration
