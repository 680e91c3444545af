// Command suites runs steps and test suites, and reports what they did.
//
//	suites run -name NAME [-specs [-focus REGEXP] [-retry]] -- COMMAND…
//	suites report [-failed]
//	suites steady -junit FILE [-rounds N] [-at-once N] -- COMMAND…
//	suites beside [-other COMMAND]… [-build COMMAND]… -- COMMAND…
//
// Run records how long the command took, in suites/NAME.json. With -specs the command runs a suite of Ginkgo, whose
// report is written to junit-NAME.xml. With -retry the specs that failed are run once more, alone, on a control plane
// of their own.
//
// Report prints the table of all that was recorded. It fails if something failed, or if too many specs passed only when
// they were run again. With -failed, the run has failed, maybe outside of what was recorded.
//
// Steady runs a suite several times while all processors are busy, and prints which specs failed how often.
//
// Beside runs a suite while other commands run, each of which prints to suites/beside-N.log, and while
// what is needed later is built.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	// make ends what it runs by SIGTERM when another suite has failed.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := do(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "suites:", err)
		os.Exit(1)
	}
}

func do(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("name what to do: run, report, steady or beside")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	switch args[0] {
	case "run":
		s := suite{}
		flags.StringVar(&s.name, "name", "", "name of the suite or step")
		flags.BoolVar(&s.specs, "specs", false, "the command runs a suite of Ginkgo")
		flags.StringVar(&s.focus, "focus", "", "regular expression of the specs to run; all by default")
		flags.BoolVar(&s.retry, "retry", false, "run failed specs once more")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		s.command = flags.Args()
		return s.run(ctx)
	case "report":
		failed := flags.Bool("failed", false, "the run has failed")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		records, err := readRecords()
		return errors.Join(err, report(os.Stdout, records, *failed, time.Now()))
	case "steady":
		s := steady{}
		flags.StringVar(&s.junit, "junit", "", "JUnit report that the command writes")
		flags.IntVar(&s.rounds, "rounds", 5, "how often the command is run")
		flags.IntVar(&s.atOnce, "at-once", 1, "how many rounds run at once")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		s.command = flags.Args()
		return s.run(ctx, os.Stdout)
	case "beside":
		b := beside{}
		add := func(to *[][]string, first ...string) func(string) error {
			return func(command string) error {
				*to = append(*to, append(first, strings.Fields(command)...))
				return nil
			}
		}
		flags.Func("other", "command that runs beside, split at spaces; there may be several", add(&b.others))
		flags.Func("build", "command that runs beside with the lowest priority; several run one after the other",
			add(&b.builds, "nice", "-n", "19"))
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		b.command = flags.Args()
		return b.run(ctx, os.Stdout)
	}
	return fmt.Errorf("%q is unknown; run, report, steady or beside", args[0])
}

// execute runs a command with the output of this program.
func execute(ctx context.Context, command []string) error { return executeTo(ctx, os.Stdout, command) }

// executeTo runs a command that prints to out; to a file, its errors too. When the context ends, the command gets
// SIGTERM and time to end what it has started.
func executeTo(ctx context.Context, out *os.File, command []string) error {
	if len(command) == 0 {
		return errors.New("name a command after --")
	}
	c := exec.CommandContext(ctx, command[0], command[1:]...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, out, os.Stderr
	if out != os.Stdout {
		c.Stdin, c.Stderr = nil, out
	}
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	return c.Run()
}
