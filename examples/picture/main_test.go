package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

// TestDraw holds that each line appears when it came, that long pauses are shortened, and that the picture is XML.
func TestDraw(t *testing.T) {
	svg := string(draw([]line{
		{0, "$ kubectl get trainjobs -w & <b>"},
		{time.Second, "resnet   Running   training   a100   1s"},
		{time.Minute, "resnet   Complete   training   a100   60s"},
	}))
	for _, want := range []string{
		"0.5s\">$ kubectl get trainjobs -w &amp; &lt;b&gt;<",
		"1.5s\">resnet   <tspan fill=\"#98c379\">Running</tspan>   training",
		"3.0s\">resnet   <tspan fill=\"#56b6c2\">Complete",
	} {
		if !strings.Contains(svg, want) {
			t.Errorf("no %q in\n%s", want, svg)
		}
	}
	for decoder := xml.NewDecoder(strings.NewReader(svg)); ; {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
