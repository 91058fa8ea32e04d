// Package xdsenvoy is a stand-in for Envoy in tests: a sidecar's proxy that pilot-agent starts as it would start Envoy, and that speaks the real
// protocols: xDS and SDS by the agent's sockets, mutual TLS to other proxies, redirected connections on both sides, and the administration that the
// agent reads. What it does not understand of a configuration it says by name; what might let somebody through that a policy stops, it refuses.
// It leaves out what no test looks at: tracing, telemetry beyond a few counters, circuit breakers, outlier detection, load balancing other than in
// turn, tunnels, and filters other than those for routing, faults and policies.
package xdsenvoy

import (
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Options are Envoy's arguments that have an effect here.
type Options struct {
	ConfigPath string
	DrainTime  time.Duration
	Level      slog.Level
}

// Arguments without an effect here: with a value, and without.
var (
	withValue = []string{
		"--component-log-level", "--concurrency", "--drain-strategy", "--file-flush-interval-msec", "--file-flush-min-size-kb", "--local-address-ip-version",
		"--parent-shutdown-time-s", "--restart-epoch", "--base-id", "--log-format", "--log-path", "--service-cluster", "--service-node", "--service-zone",
	}
	withoutValue = []string{
		"--allow-unknown-fields", "--allow-unknown-static-fields", "--disable-hot-restart", "--enable-core-dump", "--ignore-unknown-dynamic-fields",
		"--reject-unknown-dynamic-fields", "--skip-deprecated-logs", "--cpuset-threads",
	}
)

// ParseOptions reads Envoy's arguments. An argument that Envoy has not is an error, as with Envoy.
func ParseOptions(args []string) (Options, error) {
	o := Options{DrainTime: 600 * time.Second} // Envoy's
	for len(args) > 0 {
		name, value, joined := strings.Cut(args[0], "=")
		args = args[1:]
		if slices.Contains(withoutValue, name) {
			continue
		}
		if !joined {
			if len(args) == 0 {
				return o, fmt.Errorf("argument %s lacks its value", name)
			}
			value, args = args[0], args[1:]
		}
		if err := o.set(name, value); err != nil {
			return o, fmt.Errorf("argument %s: %w", name, err)
		}
	}
	if o.ConfigPath == "" {
		return o, fmt.Errorf("argument --config-path is missing")
	}
	return o, nil
}

func (o *Options) set(name, value string) error {
	switch name {
	case "-c", "--config-path":
		o.ConfigPath = value
	case "--drain-time-s":
		seconds, err := strconv.Atoi(value)
		if err != nil {
			return err
		}
		o.DrainTime = time.Duration(seconds) * time.Second
	case "-l", "--log-level":
		level, ok := map[string]slog.Level{
			"trace": slog.LevelDebug, "debug": slog.LevelDebug, "info": slog.LevelInfo, "warning": slog.LevelWarn, "warn": slog.LevelWarn,
			"error": slog.LevelError, "critical": slog.LevelError, "off": slog.LevelError + 1,
		}[value]
		if !ok {
			return fmt.Errorf("level %q is not known", value)
		}
		o.Level = level
	default:
		if !slices.Contains(withValue, name) {
			return fmt.Errorf("not known")
		}
	}
	return nil
}
