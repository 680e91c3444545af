// Package webhook has the bundled Trainer's webhooks: what a TrainJob may change of its runtime, and when; and what a
// runtime may say. It writes nothing.
package webhook
