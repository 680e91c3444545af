package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// beside runs a suite while other commands run, and while what later ones need is built. What these print follows.
type beside struct {
	command []string
	// others are commands that run at the same time.
	others [][]string
	// builds run one after the other, and take what the suites leave of the processors.
	builds [][]string
}

// buildsLog is where builds print to, and otherLog where another command does.
const buildsLog = folder + "/builds.log"

func otherLog(i int) string { return fmt.Sprintf("%s/beside-%d.log", folder, i) }

// run returns an error if one of the commands failed. If the suite fails, the other commands are ended.
func (b beside) run(ctx context.Context, out io.Writer) error {
	if len(b.others) == 0 {
		return errors.New("name another command by -other, or run the suite by itself")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	others := make([]<-chan error, len(b.others))
	for i, other := range b.others {
		fmt.Fprintf(out, "Beside this runs: %s. What it prints follows.\n", strings.Join(other, " "))
		others[i] = start(ctx, otherLog(i), [][]string{other})
	}
	builds := start(ctx, buildsLog, b.builds)
	err := execute(ctx, b.command)
	if err != nil {
		cancel() // the others end, and tell what they did
	}
	for i, other := range others {
		err = errors.Join(err, <-other, show(out, otherLog(i)))
	}
	if built := <-builds; built != nil {
		err = errors.Join(err, built, show(out, buildsLog))
	}
	return err
}

// start runs commands one after the other, whose output goes to a file, until one fails; the channel has its error.
func start(ctx context.Context, log string, commands [][]string) <-chan error {
	done := make(chan error, 1)
	go func() {
		err := os.MkdirAll(filepath.Dir(log), 0o755)
		if err != nil {
			done <- err
			return
		}
		file, err := os.Create(log)
		for i := 0; err == nil && i < len(commands); i++ {
			err = executeTo(ctx, file, commands[i])
		}
		done <- errors.Join(err, file.Close())
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
