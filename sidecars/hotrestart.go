package sidecars

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
)

// argVersion has an Envoy print the version of its hot restart's protocol, and end.
const argVersion = "--hot-restart-version"

// errReplace means that no proxy of the new version can take over, and that the profile accepts the loss of connections.
var errReplace = errors.New("the new version cannot take over")

// errServesNot means that an Envoy has not taken over yet.
var errServesNot = errors.New("its admin interface does not say that it serves")

// Prober runs a program of a profile's image for its answer.
type Prober interface {
	// Output returns what the program prints, on either stream.
	Output(ctx context.Context, spec sidecar.Spec) (string, error)
}

// hotRestarts reports whether there are proxies that take over from each other by Envoy's hot restart.
func (s *stepping) hotRestarts() bool {
	return s.choice.Profile.hot() || slices.ContainsFunc(s.there, func(c sidecar.Container) bool { return c.HotRestart != nil })
}

// hot reports whether the profile's proxies take over from each other by Envoy's hot restart.
func (p *Profile) hot() bool { return p != nil && p.Spec.Handover == v1alpha1.HandoverEnvoy }

// replacesIncompatible reports whether a running Envoy is stopped first if the new one cannot take over from it.
func (p *Profile) replacesIncompatible() bool {
	return p.Spec.HotRestart != nil && p.Spec.HotRestart.OnIncompatibleVersion == v1alpha1.IncompatibleReplace
}

// maxRunning says how many proxies may run at once: of a version that cannot take over from what runs, one.
func (s *stepping) maxRunning(p *Profile) int {
	if s.noHandover == p.Hash {
		return 1
	}
	return p.maxRunning()
}

// wait returns how long a proxy that is stopped may take.
func (a Action) wait() time.Duration {
	if a.Kill {
		return 0
	}
	return stopWait
}

// hotArgs are the arguments of Envoy's hot restart. The socket's path is in a directory that only the pod's proxies can enter.
func hotArgs(place sidecar.HotRestart, drain time.Duration) []string {
	seconds := uint32(drain / time.Second) //nolint:gosec // the schema bounds it to a day
	return []string{
		"--restart-epoch", number(place.Epoch), "--base-id", strconv.Itoa(baseID),
		"--socket-path", path.Join(PathRun, lineSocket+number(place.Line)), "--socket-mode", "0600",
		"--drain-time-s", number(seconds * 2 / 3), "--parent-shutdown-time-s", number(seconds), //nolint:mnd // as Envoy's own defaults
	}
}

// takePlace finds the place of a proxy that is about to be made, and readies what it shares with the one that it takes over from, which is
// nil for the first of a line. The error says why it cannot take over.
func (s *stepping) takePlace(ctx context.Context, l launch, from *sidecar.Container) (*sidecar.HotRestart, error) {
	out := &sidecar.HotRestart{Line: l.epoch}
	version, err := s.protocol(ctx, l)
	if err != nil {
		if from != nil {
			return nil, fmt.Errorf("the running proxy stays: %w", err)
		}
		log.FromContext(ctx).Info("version of the hot restart not found out", "reason", err.Error())
	}
	out.Version = version
	if from == nil {
		s.home.removeLines(s.lines())
		return out, nil
	}
	if err := s.canFollow(out, from, l.profile); err != nil {
		return nil, err
	}
	out.Line, out.Epoch = from.HotRestart.Line, from.HotRestart.Epoch+1
	return out, errors.Join(s.home.note(factSuccessor, from.Epoch), s.home.endInitializing())
}

// lines returns the lines of the proxies that run.
func (s *stepping) lines() (out []uint32) {
	for _, c := range s.there {
		if c.HotRestart != nil && c.State == sidecar.Running {
			out = append(out, c.HotRestart.Line)
		}
	}
	return out
}

// canFollow returns nil if both Envoys have the same version of the hot restart, errReplace if they do not and the profile has the running
// one stopped first, and otherwise why the running one stays.
func (s *stepping) canFollow(next *sidecar.HotRestart, from *sidecar.Container, p *Profile) error {
	running := ""
	if from.HotRestart != nil {
		running = from.HotRestart.Version
	}
	if running != "" && running == next.Version {
		return nil
	}
	if p.replacesIncompatible() {
		s.noHandover = p.Hash
		return errReplace
	}
	if running == "" {
		running = "unknown"
	}
	return fmt.Errorf("the running proxy stays: its hot restart has the version %s, and that of %s is %s; "+
		"set hotRestart.onIncompatibleVersion to Replace to have it stopped first, or make the pod anew", running, p.Spec.Image, next.Version)
}

// protocol returns the version of the hot restart that the profile's image speaks.
func (s *stepping) protocol(ctx context.Context, l launch) (string, error) {
	spec := l.spec(s.home)
	spec.Mounts, spec.NetAdmin, spec.Labels.HotRestart, spec.Args = nil, false, nil, []string{argVersion}
	text, err := s.Prober.Output(ctx, spec)
	if err != nil {
		return "", fmt.Errorf("ask %s for its %s: %w", spec.Image, argVersion, err)
	}
	version := strings.TrimSpace(text)
	if version == "" || strings.Trim(version, "0123456789.") != "" {
		return "", fmt.Errorf("%s answers %s with %.100q, which is no version: its command has to be Envoy", spec.Image, argVersion, version)
	}
	return version, nil
}

// noteReady notes the Envoys that serve, which they say by their own admin sockets. It is noted in the home since a proxy that has a
// successor no longer answers: its admin interface is closed first.
func (s *stepping) noteReady(ctx context.Context) {
	for _, c := range s.there {
		if c.HotRestart == nil || c.State != sidecar.Running || s.home.noted(factReady, c.Epoch) || s.Asker.Serves(ctx, s.sandbox, c.Epoch) != nil {
			continue
		}
		if err := s.home.note(factReady, c.Epoch); err != nil {
			log.FromContext(ctx).Error(err, "proxy that serves not noted", "epoch", c.Epoch)
		}
	}
}

// serves reports whether the profile's readiness check says anything about a proxy. Old and new Envoy have the same ports, so before the new
// one serves, the old one would answer for it.
func (s *stepping) serves(c sidecar.Container) bool {
	return c.HotRestart == nil || s.home.noted(factReady, c.Epoch)
}

// relate adds to the observed proxies which of them are done, and what is known of the lines of Envoys.
func (s *stepping) relate(ctx context.Context, proxies []Proxy) []Proxy {
	for i, c := range s.there {
		proxies[i].Done = s.isDone(c)
		if c.HotRestart == nil || c.State != sidecar.Running {
			continue
		}
		p := &proxies[i]
		p.Ready = s.home.noted(factReady, c.Epoch)
		p.Orphan = !p.Ready && c.HotRestart.Epoch > 0 && s.inLine(c, -1) == nil
		if p.Ready && p.DrainedAt.IsZero() && s.home.noted(factSuccessor, c.Epoch) && s.inLine(c, +1) == nil {
			p.Succeeded = s.choice.Profile != nil && errors.Is(s.Asker.Listens(ctx, s.sandbox, s.choice.Profile), ErrNobodyListens)
		}
	}
	return proxies
}

// inLine returns the running proxy that is a step before or after one in its line, or nil.
func (s *stepping) inLine(c sidecar.Container, step int) *sidecar.Container {
	i := slices.IndexFunc(s.there, func(o sidecar.Container) bool {
		return o.State == sidecar.Running && o.HotRestart != nil && o.HotRestart.Line == c.HotRestart.Line &&
			int64(o.HotRestart.Epoch) == int64(c.HotRestart.Epoch)+int64(step)
	})
	if i < 0 {
		return nil
	}
	return &s.there[i]
}

// replaced reports whether an epoch's proxy has a successor that serves, which ends it.
func (s *stepping) replaced(epoch uint32) bool {
	return s.home.noted(factSuccessor, epoch) && slices.ContainsFunc(s.there, func(c sidecar.Container) bool {
		return c.State == sidecar.Running && c.Epoch > epoch && s.home.noted(factReady, c.Epoch)
	})
}

// admin is the name of an epoch's admin socket in the run directory.
func admin(epoch uint32) string { return "admin-" + number(epoch) + ".sock" }

// AdminSocket is the path of the socket on which an epoch's Envoy has its admin interface.
func (h Homes) AdminSocket(s podnet.Sandbox, epoch uint32) string {
	return path.Join(h.RunDirectory(s), admin(epoch))
}
