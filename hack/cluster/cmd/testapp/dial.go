package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"time"
)

// summary counts the results of a series of requests. With uninterrupted traffic failed is 0 and there is one banner only.
type summary struct {
	OK     int `json:"ok"`
	Failed int `json:"failed"`
	// Answers counts by banner, Errors by message.
	Answers map[string]int `json:"answers"`
	Errors  map[string]int `json:"errors,omitempty"`
	// LongestMillis is the slowest answer.
	LongestMillis int64 `json:"longestMillis"`
	// Done is true in the last line only.
	Done bool `json:"done"`
}

// add counts the time of failures too: a hanging connection is the worst loss of all.
func (s *summary) add(banner string, err error, took time.Duration) {
	s.LongestMillis = max(s.LongestMillis, took.Milliseconds())
	if err != nil {
		s.Failed++
		s.Errors[err.Error()]++
		return
	}
	s.OK++
	s.Answers[banner]++
}

// write puts the counts into a file, if there is to be one.
func (s *summary) write(file string) error {
	if file == "" {
		return nil
	}
	text, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode counts: %w", err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return fmt.Errorf("write counts: %w", err)
	}
	return nil
}

// series says when requests are made and when counts are printed.
type series struct {
	n             int
	lasting       time.Duration
	every, report time.Duration
}

// dial makes requests one after the other until one of its limits, or a signal, and prints counts meanwhile and at the end.
func dial(ctx context.Context, args []string, out, progress io.Writer) error {
	flags := flag.NewFlagSet("dial", flag.ContinueOnError)
	flags.SetOutput(progress)
	var s series
	flags.IntVar(&s.n, "n", 0, "how many requests (default: no limit)")
	flags.DurationVar(&s.lasting, "for", 0, "how long (default: until a signal)")
	flags.DurationVar(&s.every, "every", 10*time.Millisecond, "pause between requests")
	flags.DurationVar(&s.report, "report", time.Second, "how often the counts so far are printed; 0: only at the end")
	last := flags.String("last", "", "`file` that the last line goes to, too: Kubernetes shows /dev/termination-log in the pod's status")
	c, err := clientFlags(flags)(args, "dial wants one target: http://HOST:PORT/PATH or HOST:PORT")
	if err != nil {
		return err
	}
	ask := func(ctx context.Context) (string, error) { return c.ask(ctx, flags.Arg(0)) }
	result, err := s.run(ctx, ask, out)
	if err != nil {
		return err
	}
	if err := result.write(*last); err != nil {
		return err
	}
	// Nothing asked is a failure too, or a mistaken limit would look like success.
	if result.Failed > 0 || result.OK == 0 {
		return fmt.Errorf("%d of %d requests failed", result.Failed, result.Failed+result.OK)
	}
	return nil
}

// run never overlaps requests, so that the counts show how long an interruption was.
func (s series) run(ctx context.Context, ask func(context.Context) (string, error), out io.Writer) (summary, error) {
	if s.lasting > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.lasting)
		defer cancel()
	}
	result := summary{Answers: map[string]int{}, Errors: map[string]int{}}
	encoder := json.NewEncoder(out)
	told := time.Now()
	for i := 0; (s.n == 0 || i < s.n) && ctx.Err() == nil; i++ {
		start := time.Now()
		// The end of the series must not break a request off: that would count as a loss.
		banner, err := ask(context.WithoutCancel(ctx))
		result.add(banner, err, time.Since(start))
		if s.report > 0 && time.Since(told) >= s.report {
			told = time.Now()
			if err := encoder.Encode(result); err != nil {
				return result, fmt.Errorf("print: %w", err)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(s.every):
		}
	}
	result.Done = true
	if err := encoder.Encode(result); err != nil {
		return result, fmt.Errorf("print: %w", err)
	}
	return result, nil
}
