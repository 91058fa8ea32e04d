package sidecars

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"istio-pod-network-controller/internal/sidecar"
)

const (
	// secretsPeriod is the time between two checks of a sandbox's secrets.
	secretsPeriod = 10 * time.Second
	// tokenFile is the file with a ServiceAccount's token.
	tokenFile = "token"
)

// grantSecrets gives a proxy that is about to be made what its profile says. The directory is the epoch's.
func grantSecrets(ctx context.Context, from Secrets, secrets string, l launch) error {
	o := l.owner
	if err := makeDir(secrets, o); err != nil {
		return err
	}
	reader := secretReader{from, l.Pod.Namespace, func() (*corev1.Pod, error) { return l.Pod, nil }}
	g := grant{UID: o.uid, GID: o.gid}
	for _, source := range l.Version.Spec.Secrets {
		granted := grantedSource{SecretSource: source}
		if l.Istio != nil {
			granted.TokenFile = istioTokenFile
		}
		dir := secretDir{filepath.Join(secrets, source.Name), o}
		if err := makeDir(dir.path, o); err != nil {
			return err
		}
		if source.WorkloadAPI == nil {
			files, renewAt, err := reader.read(ctx, granted)
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
	return g.write(secrets)
}

// secretReader reads the secrets of one pod's proxies. It asks for the pod only if one is a token.
type secretReader struct {
	from      Secrets
	namespace string // the pod's
	pod       func() (*corev1.Pod, error)
}

// read returns the files of a source, and when to read it again; zero is at every check.
func (r secretReader) read(ctx context.Context, source grantedSource) (files map[string][]byte, renewAt time.Time, err error) {
	switch {
	case source.Secret != nil:
		files, err = r.from.Secret(source.Secret.Name, source.Secret.Keys)
		if err != nil {
			return nil, time.Time{}, fmt.Errorf("Secret %q: %w", source.Secret.Name, err)
		}
	case source.ConfigMap != nil:
		files, err = r.from.ConfigMap(ctx, r.namespace, *source.ConfigMap)
		if err != nil {
			return nil, time.Time{}, fmt.Errorf("ConfigMap %q of the pod's namespace: %w", source.ConfigMap.Name, err)
		}
	case source.ServiceAccountToken != nil:
		pod, err := r.pod()
		if err != nil {
			return nil, time.Time{}, err
		}
		now := time.Now()
		token, expires, err := r.from.Token(ctx, pod, *source.ServiceAccountToken)
		if err != nil {
			return nil, time.Time{}, fmt.Errorf("token for the audience %q: %w", source.ServiceAccountToken.Audience, err)
		}
		return map[string][]byte{cmp.Or(source.TokenFile, tokenFile): token}, renewal(now, expires), nil
	}
	return files, time.Time{}, nil
}

// renewal returns when 80 % of a token's lifetime is over.
func renewal(from, expires time.Time) time.Time {
	const part, whole = 4, 5
	return from.Add(expires.Sub(from) * part / whole)
}

// renewSecrets brings the secrets of the proxies that run up to date, those of older versions of the profile as well. A source that cannot
// be read leaves what the proxy has; the ManagedProxy says why.
func renewSecrets(ctx context.Context, from Secrets, cluster Cluster, v view, f *followed) {
	if now := time.Now(); now.Sub(f.renewed) >= secretsPeriod {
		f.renewed = now
		var faults []string
		if err := v.home.prune(v.there); err != nil {
			faults = append(faults, err.Error())
		}
		reader := secretReader{from, v.sandbox.Namespace, func() (*corev1.Pod, error) { return cluster.Pod(ctx, v.sandbox) }}
		for _, c := range v.there {
			if c.State != sidecar.Running {
				continue
			}
			if err := renewEpoch(ctx, reader, v.home, c.Epoch); err != nil {
				faults = append(faults, strings.ReplaceAll(err.Error(), "\n", "; "))
			}
		}
		f.stale = strings.Join(faults, "; ")
	}
}

func renewEpoch(ctx context.Context, reader secretReader, home home, epoch uint32) error {
	secrets := home.secrets(epoch)
	g, err := readGrant(secrets)
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
		dir, before := secretDir{filepath.Join(secrets, source.Name), owner{g.UID, g.GID}}, source.RenewAt
		err := dir.prune()
		if err == nil && !time.Now().Before(before) {
			err = renewSource(ctx, reader, home, epoch, source, dir)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("secrets: %q is not renewed: %w", source.Name, err))
		}
		renewed = renewed || !source.RenewAt.Equal(before)
	}
	if renewed {
		faults = append(faults, g.write(secrets))
	}
	return errors.Join(faults...)
}

// renewSource replaces the files of a source if they have changed. factRotated is noted first: if the agent is killed in between, there may
// be one new proxy too many, which does no harm, but none is missed.
func renewSource(ctx context.Context, reader secretReader, home home, epoch uint32, source *grantedSource, dir secretDir) error {
	files, renewAt, err := reader.read(ctx, *source)
	if err != nil || dir.holds(files) {
		return err
	}
	if source.UpgradeOnRotation {
		if err := home.note(factRotated, epoch); err != nil {
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
