package admission

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestBlockedError(t *testing.T) {
	for name, c := range map[string]struct {
		reason, text string
		most         int
		cut          bool
	}{
		"short":             {"it is told as it is", "no such runtime", 15, false},
		"as long as it may": {"it is told as it is", strings.Repeat("a", maxMessage), maxMessage, false},
		"longer":            {"a condition holds 32,768 bytes", strings.Repeat("a", 100<<10), maxMessage + 3, true},
		"of wide runes":     {"none is cut in two", strings.Repeat("a", maxMessage-1) + "…", maxMessage + 2, true},
	} {
		t.Run(name, func(t *testing.T) {
			got := (&BlockedError{Err: errors.New(c.text)}).Error()
			if len(got) != c.most || !utf8.ValidString(got) || strings.HasSuffix(got, "…") != c.cut || !c.cut && got != c.text {
				t.Errorf("%s: got %d bytes, %q", c.reason, len(got), got[max(0, len(got)-5):])
			}
		})
	}
}
