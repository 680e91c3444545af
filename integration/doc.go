// Package integration is TrainJob as Kueue's jobframework sees it: the reconciler, the webhook, and the checks at
// start-up. It alone knows jobframework, which is no stable API. It reads, asks overrides, podsets and admission what
// follows, and lets admission write.
package integration
