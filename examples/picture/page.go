package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/chromedp/chromedp"
)

// views are the pictures of the page, by the paths of what they show.
var views = map[string]string{
	"now": "/", "timeline": "/timeline?hours=2", "trainjobs": "/trainjobs", "trainjob": "/trainjobs/vision/whisper",
	"nodes": "/nodes", "teams": "/teams",
}

// drawPages draws the views of the page into a folder, while TrainJobs run and wait.
func drawPages(ctx context.Context, s *scene, plugin, folder string) error {
	if err := s.apply(ctx, "page.yaml"); err != nil {
		return err
	}
	wait := exec.CommandContext(ctx, s.kubectl, "-n", "vision", "wait", "trainjob/llama", "trainjob/clip", "trainjob/vit",
		"--for=jsonpath={.status.state}=Running", "--timeout=1m")
	if out, err := wait.CombinedOutput(); err != nil {
		return fmt.Errorf("waiting for TrainJobs to run: %w\n%s", err, out)
	}
	serving := exec.CommandContext(ctx, plugin, "dashboard", "--no-browser", "--namespace", "vision")
	serving.Stderr = os.Stderr
	out, err := serving.StdoutPipe()
	if err != nil {
		return err
	}
	if err := serving.Start(); err != nil {
		return err
	}
	defer func() {
		_ = serving.Process.Kill() // it serves until it is killed
		_ = serving.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return fmt.Errorf("reading the link of the page: %w", err)
	}
	link := strings.TrimSpace(strings.TrimPrefix(line, "The page is at "))
	allocated, end := chromedp.NewExecAllocator(ctx, append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath("chromium"), chromedp.NoSandbox, chromedp.WindowSize(1200, 640))...)
	defer end()
	tab, endTab := chromedp.NewContext(allocated)
	defer endTab()
	const shown = "#view h1"
	if err := chromedp.Run(tab, chromedp.Navigate(link), chromedp.WaitVisible(shown, chromedp.ByQuery)); err != nil {
		return fmt.Errorf("opening the page in Chromium (on Debian: apt-get install chromium): %w", err)
	}
	origin, _, _ := strings.Cut(link, "/#")
	if err := chromedp.Run(
		tab,
		chromedp.Poll(`[...document.querySelectorAll("#view .waiting td:last-child time")].length > 0`,
			nil, chromedp.WithPollingTimeout(time.Minute)),
	); err != nil {
		return fmt.Errorf("waiting for expected starts: %w", err)
	}
	for name, path := range views {
		var picture []byte
		if err := chromedp.Run(tab, chromedp.Navigate(origin+path), chromedp.WaitVisible(shown, chromedp.ByQuery),
			chromedp.CaptureScreenshot(&picture)); err != nil {
			return fmt.Errorf("drawing %s: %w", path, err)
		}
		if err := os.WriteFile(filepath.Join(folder, "page-"+name+".png"), picture, 0o644); err != nil {
			return err
		}
	}
	return s.drawWhatIf(tab, origin, folder)
}

// drawWhatIf draws the form with an answer.
func (s *scene) drawWhatIf(tab context.Context, origin, folder string) error {
	var picture []byte
	if err := chromedp.Run(tab, chromedp.Navigate(origin+"/whatif"), chromedp.WaitVisible("#name", chromedp.ByQuery),
		chromedp.SetValue("#name", "vision/whisper", chromedp.ByQuery),
		chromedp.SetValue("#nodes", "1", chromedp.ByQuery), chromedp.Click("form.whatif button", chromedp.ByQuery),
		chromedp.WaitVisible(".answer", chromedp.ByQuery), chromedp.ScrollIntoView(".answer", chromedp.ByQuery),
		chromedp.CaptureScreenshot(&picture)); err != nil {
		return fmt.Errorf("drawing /whatif: %w", err)
	}
	return os.WriteFile(filepath.Join(folder, "page-whatif.png"), picture, 0o644)
}
