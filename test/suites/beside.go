package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// beside runs a suite while other suites run, one after the other, and while what later ones need is built. What these
// print follows.
type beside struct {
	command []string
	// others and builds are commands, split at spaces. builds take what the suites leave of the processors.
	others, builds []string
}

// Where others and builds print to.
const (
	othersLog = "beside.log"
	buildsLog = "builds.log"
)

// run returns an error if one of the commands failed. If the suite fails, the other commands are ended.
func (b beside) run(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	fmt.Fprintf(out, "Beside this runs: %s. What it prints follows.\n", strings.Join(b.others, " "))
	others := start(ctx, othersLog, b.others)
	var builds <-chan error
	if len(b.builds) > 0 {
		builds = start(ctx, buildsLog, append([]string{"nice", "-n", "19"}, b.builds...))
	}
	if err := execute(ctx, b.command); err != nil {
		cancel()
		<-others
		if builds != nil {
			<-builds
		}
		return err
	}
	err := errors.Join(<-others, show(out, othersLog))
	if builds != nil {
		if built := <-builds; built != nil {
			err = errors.Join(err, built, show(out, buildsLog))
		}
	}
	return err
}

// start runs a command whose output goes to a file; the channel has its result.
func start(ctx context.Context, log string, command []string) <-chan error {
	done := make(chan error, 1)
	go func() {
		file, err := os.Create(log)
		if err != nil {
			done <- err
			return
		}
		defer file.Close()
		done <- executeTo(ctx, file, command)
	}()
	return done
}

func show(out io.Writer, log string) error {
	content, err := os.ReadFile(log)
	if err != nil {
		return err
	}
	_, err = out.Write(content)
	return err
}
