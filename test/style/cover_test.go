package main

import (
	"maps"
	"testing"
)

func TestSharesOf(t *testing.T) {
	// As go tool covdata prints it, with a package without statements.
	const output = "\tgithub.com/signalbox-dev/signalbox/store/events\t\tcoverage: 100.0% of statements\n" +
		"\tgithub.com/signalbox-dev/signalbox/examples/training\t\t" +
		"\tgithub.com/signalbox-dev/signalbox/integration\t\tcoverage: 92.7% of statements\n"
	got, err := sharesOf(output)
	if want := map[string]float64{"store/events": 100, "integration": 92.7}; err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}
