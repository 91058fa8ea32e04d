package sidecars

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/sidecar"
)

const (
	// secretsPeriod is the time between two checks of a sandbox's secrets.
	secretsPeriod = 10 * time.Second
	// tokenFile is the file with a ServiceAccount's token.
	tokenFile = "token"
	// rotatedHash is added to the hash of a proxy that a new one has to replace because its secrets have changed.
	rotatedHash = "-rotated"
)

// versionOf returns the hash of the profile's version that a proxy is of.
func versionOf(c sidecar.Container) string { return strings.TrimSuffix(c.Hash, rotatedHash) }

// Secrets has what profiles give to their proxies. Errors contain nothing of it.
type Secrets interface {
	// Secret returns the values of a Secret's keys, all of one version. Without keys it returns all.
	Secret(name string, keys []string) (map[string][]byte, error)
	// Token returns a token of a pod's ServiceAccount that is bound to the pod.
	Token(ctx context.Context, pod *corev1.Pod, want v1alpha1.ServiceAccountToken) (token []byte, expires time.Time, err error)
}

// grantSecrets gives an epoch's proxy, which is about to be made, what its profile says.
func (s *stepping) grantSecrets(ctx context.Context, epoch uint32, pod *corev1.Pod, o owner) error {
	sources := s.choice.Profile.Spec.Secrets
	if err := s.home.forgetSecrets(epoch); err != nil || len(sources) == 0 { // of an agent that was killed before it started the proxy
		return err
	}
	if s.Homes.inMemory != nil {
		if err := s.Homes.inMemory(); err != nil {
			return err
		}
	}
	if err := makeDir(s.home.secrets(epoch), o); err != nil {
		return err
	}
	g := grant{UID: o.uid, GID: o.gid}
	for _, source := range sources {
		granted := grantedSource{SecretSource: source}
		dir := s.home.secretDir(epoch, source.Name, o)
		if err := makeDir(dir.path, o); err != nil {
			return err
		}
		if source.WorkloadAPI == nil {
			files, renewAt, err := s.readSecret(ctx, source, func() (*corev1.Pod, error) { return pod, nil })
			if err != nil {
				return fmt.Errorf("secrets: %q: %w", source.Name, err)
			}
			granted.RenewAt = renewAt
			if err := dir.replace(files, time.Now()); err != nil {
				return err
			}
		}
		g.Sources = append(g.Sources, granted)
	}
	return s.home.putGrant(epoch, g)
}

// readSecret returns the files of a source, and when to read it again; zero is at every check.
func (s *stepping) readSecret(
	ctx context.Context, source v1alpha1.SecretSource, podOf func() (*corev1.Pod, error),
) (files map[string][]byte, renewAt time.Time, err error) {
	switch {
	case source.Secret != nil:
		files, err = s.Secrets.Secret(source.Secret.Name, source.Secret.Keys)
		if err != nil {
			return nil, time.Time{}, fmt.Errorf("Secret %q: %w", source.Secret.Name, err)
		}
	case source.ServiceAccountToken != nil:
		pod, err := podOf()
		if err != nil {
			return nil, time.Time{}, err
		}
		now := time.Now()
		token, expires, err := s.Secrets.Token(ctx, pod, *source.ServiceAccountToken)
		if err != nil {
			return nil, time.Time{}, fmt.Errorf("token for the audience %q: %w", source.ServiceAccountToken.Audience, err)
		}
		return map[string][]byte{tokenFile: token}, renewal(now, expires), nil
	}
	return files, time.Time{}, nil
}

// renewal returns when 80 % of a token's lifetime is over.
func renewal(from, expires time.Time) time.Time {
	const part, whole = 4, 5
	return from.Add(expires.Sub(from) * part / whole)
}

// renewSecrets brings the secrets of the proxies that run up to date, those of older versions of the profile as well. A source that cannot
// be read leaves what the proxy has; the Sidecar says why.
func (s *stepping) renewSecrets(ctx context.Context) {
	if now := time.Now(); now.Sub(s.renewed) >= secretsPeriod {
		s.renewed = now
		var faults []string
		if err := s.home.prune(s.there); err != nil {
			faults = append(faults, err.Error())
		}
		for _, c := range s.there {
			if c.State != sidecar.Running {
				continue
			}
			if err := s.renewEpoch(ctx, c.Epoch); err != nil {
				faults = append(faults, strings.ReplaceAll(err.Error(), "\n", "; "))
			}
		}
		s.stale = strings.Join(faults, "; ")
	}
	for i, c := range s.there {
		if s.home.noted(factRotated, c.Epoch) {
			s.there[i].Hash += rotatedHash
		}
	}
}

func (s *stepping) renewEpoch(ctx context.Context, epoch uint32) error {
	g, err := s.home.granted(epoch)
	if err != nil {
		return err
	}
	var faults []error
	renewed := false
	for i := range g.Sources {
		source := &g.Sources[i]
		if source.WorkloadAPI != nil {
			continue
		}
		dir, before := s.home.secretDir(epoch, source.Name, owner{g.UID, g.GID}), source.RenewAt
		err := dir.prune()
		if err == nil && !time.Now().Before(before) {
			err = s.renewSource(ctx, epoch, source, dir)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("secrets: %q is not renewed: %w", source.Name, err))
		}
		renewed = renewed || !source.RenewAt.Equal(before)
	}
	if renewed {
		faults = append(faults, s.home.putGrant(epoch, g))
	}
	return errors.Join(faults...)
}

// renewSource replaces the files of a source if they have changed. factRotated is noted first: if the agent is killed in between, there may
// be one new proxy too many, which does no harm, but none is missed.
func (s *stepping) renewSource(ctx context.Context, epoch uint32, source *grantedSource, dir secretDir) error {
	files, renewAt, err := s.readSecret(ctx, source.SecretSource, func() (*corev1.Pod, error) { return s.Cluster.Pod(ctx, s.sandbox) })
	if err != nil {
		return err
	}
	if dir.holds(files) {
		return nil
	}
	if source.UpgradeOnRotation {
		if err := s.home.note(factRotated, epoch); err != nil {
			return err
		}
	}
	if err := dir.replace(files, time.Now()); err != nil {
		return err
	}
	source.RenewAt = renewAt
	log.FromContext(ctx).Info("secret of a proxy renewed", "secret", source.Name, "epoch", epoch)
	return nil
}
