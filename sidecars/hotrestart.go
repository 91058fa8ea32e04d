package sidecars

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/profile"
)

// argVersion has an Envoy print the version of its hot restart's protocol, and end.
const argVersion = "--hot-restart-version"

// errReplace means that no proxy of the new version can take over, and that the profile accepts the loss of connections.
var errReplace = errors.New("the new version cannot take over")

// joinLine returns the epoch of a proxy that is about to be made in its line of Envoys, and readies the memory that it shares with the one it takes
// over from (nil: it is the first of a line). The error says why it cannot take over.
func joinLine(ctx context.Context, prober Prober, o observed, l launch, from *sidecar.Container) (*sidecar.HotRestart, error) {
	spec, p := l.spec(o.home), l.instance.Version
	out := &sidecar.HotRestart{Line: spec.Epoch}
	version, err := protocol(ctx, prober, spec)
	if err != nil {
		if from != nil {
			return nil, fmt.Errorf("the running proxy stays: %w", err)
		}
		log.FromContext(ctx).Info("version of the hot restart not found out", "reason", err.Error())
	}
	out.Version = version
	if from == nil {
		return out, nil
	}
	if err := canFollow(out, from, p); err != nil {
		return nil, err
	}
	out.Line, out.Epoch = from.HotRestart.Line, from.HotRestart.Epoch+1
	if o.lostSuccessor(*from) { // which may have left its mark in the memory
		err = home.RestoreMemory(o.home, l.owner)
	} else {
		err = home.KeepMemory(o.home)
	}
	return out, errors.Join(err, o.home.Epoch(from.Epoch).Note(home.Successor))
}

// canFollow returns nil if both Envoys have the same version of the hot restart, errReplace if they do not and the profile has the running
// one stopped first, and otherwise why the running one stays.
func canFollow(next *sidecar.HotRestart, from *sidecar.Container, p *profile.Version) error {
	running := ""
	if from.HotRestart != nil {
		running = from.HotRestart.Version
	}
	if running != "" && running == next.Version {
		return nil
	}
	if h := p.Spec.HotRestart; h != nil && h.OnIncompatibleVersion == v1alpha1.IncompatibleReplace {
		return errReplace
	}
	if running == "" {
		running = "unknown"
	}
	return fmt.Errorf("the running proxy stays: its hot restart has the version %s, and that of %s is %s; "+
		"set update.handover.envoyHotRestart.onIncompatibleVersion to Replace to have it stopped first, or make the pod anew", running, p.Spec.Image, next.Version)
}

func protocol(ctx context.Context, prober Prober, spec sidecar.Spec) (string, error) {
	spec.Mounts, spec.NetAdmin, spec.Labels.HotRestart, spec.Args = nil, false, nil, []string{argVersion}
	text, err := prober.Output(ctx, spec)
	if err != nil {
		return "", fmt.Errorf("ask %s for its %s: %w", spec.Image, argVersion, err)
	}
	version := strings.TrimSpace(text)
	if version == "" || strings.Trim(version, "0123456789.") != "" {
		return "", fmt.Errorf("%s answers %s with %.100q, which is no version: its command has to be Envoy", spec.Image, argVersion, version)
	}
	return version, nil
}
