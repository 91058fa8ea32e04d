package early

import (
	"slices"
	"testing"
	"time"

	"istio-pod-network-controller/internal/redirection"
)

// What is not understood here must go the common way, where it is either right or complained about.
func TestOnlyPlainFlagsAreTaken(t *testing.T) {
	for name, c := range map[string]struct {
		in   []string
		want redirection.Options
		ok   bool
	}{
		"none":                   {nil, redirection.Options{Port: 15006, Timeout: time.Minute}, true},
		"joined":                 {[]string{"--timeout=1m30s", "--port=1"}, redirection.Options{Port: 1, Timeout: 90 * time.Second}, true},
		"apart":                  {[]string{"--port", "65535", "--timeout", "5ms"}, redirection.Options{Port: 65535, Timeout: 5 * time.Millisecond}, true},
		"once":                   {[]string{"--once"}, redirection.Options{Port: 15006, Timeout: time.Minute, Once: true}, true},
		"once with a value":      {in: []string{"--once=true"}},
		"help":                   {in: []string{"--help"}},
		"a port that is none":    {in: []string{"--port=65536"}},
		"a negative port":        {in: []string{"--port", "-1"}},
		"a time without a unit":  {in: []string{"--timeout=5"}},
		"a value that is absent": {in: []string{"--once", "--timeout"}},
		"an unknown flag":        {in: []string{"--ports=15006"}},
		"one dash":               {in: []string{"-once"}},
		"an argument":            {in: []string{"now"}},
		"an empty argument":      {in: []string{""}},
	} {
		t.Run(name, func(t *testing.T) {
			if got, ok := parse(c.in); ok != c.ok || ok && got != c.want {
				t.Errorf("%+v, %v; want %+v, %v", got, ok, c.want, c.ok)
			}
		})
	}
}

func TestOtherCommandsPass(t *testing.T) {
	for _, args := range [][]string{nil, {"program"}, {"program", "run"}, {"program", "waits"}, {"program", "--once", "wait"}, {"program", "wait", "--help"}} {
		if run(args, func(int) { t.Errorf("%q ended the process", args) }) {
			t.Errorf("%q was taken for wait", args)
		}
	}
	codes := []int{}
	if !run([]string{"program", "wait", "--port=0"}, func(code int) { codes = append(codes, code) }) || !slices.Equal(codes, []int{1}) {
		t.Errorf("a wait that cannot be ended with codes %v, want 1 once", codes)
	}
}
