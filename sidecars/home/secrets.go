package home

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

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/profile"
)

// The file with a ServiceAccount's token, and the one with that of Istio's proxy.
const (
	tokenFile      = "token"
	istioTokenFile = "istio-token"
)

// Secrets has what profiles give to their proxies. Errors contain nothing of it.
type Secrets interface {
	// Secret returns the values of a Secret's keys, all of one version. Without keys it returns all.
	Secret(name string, keys []string) (map[string][]byte, error)
	// ConfigMap returns the values of a ConfigMap's keys; ErrNoConfigMap if it is not there. It is asked often, and makes no request for that.
	ConfigMap(ctx context.Context, namespace string, want v1alpha1.ConfigMapKeys) (map[string][]byte, error)
	// Token returns a token of a pod's ServiceAccount that is bound to the pod.
	Token(ctx context.Context, pod *corev1.Pod, want v1alpha1.ServiceAccountToken) (token []byte, expires time.Time, err error)
}

// ErrNoConfigMap says that a ConfigMap is not there.
var ErrNoConfigMap = errors.New("it is not there")

// GrantSecrets gives a proxy that is about to be made what its profile says.
func (e Epoch) GrantSecrets(ctx context.Context, from Secrets, i profile.Instance, o Owner) error {
	secrets := e.Secrets()
	if err := makeDir(secrets, o); err != nil {
		return err
	}
	reader := secretReader{from, i.Pod.Namespace, func() (*corev1.Pod, error) { return i.Pod, nil }}
	g := grant{UID: o.UID, GID: o.GID}
	for _, source := range i.Version.Spec.Secrets {
		granted := grantedSource{SecretSource: source}
		if i.Istio != nil {
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
			return nil, time.Time{}, fmt.Errorf("Secret %q: %w", source.Secret.Name, err) //nolint:staticcheck // a kind
		}
	case source.ConfigMap != nil:
		files, err = r.from.ConfigMap(ctx, r.namespace, *source.ConfigMap)
		if source.ConfigMap.Optional && errors.Is(err, ErrNoConfigMap) {
			return nil, time.Time{}, nil
		}
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

// RenewSecrets brings the secrets of the proxies that run up to date, those of older versions of the profile as well. A source that cannot be
// read leaves what the proxy has: stale says why. pod reads the sandbox's pod.
func (h Home) RenewSecrets(ctx context.Context, from Secrets, namespace string, pod func() (*corev1.Pod, error), there []sidecar.Container) (stale string) {
	var faults []string
	if err := h.Prune(there); err != nil {
		faults = append(faults, err.Error())
	}
	for _, c := range there {
		if c.State != sidecar.Running {
			continue
		}
		if err := renew(ctx, h.Epoch(c.Epoch), secretReader{from, namespace, pod}); err != nil {
			faults = append(faults, strings.ReplaceAll(err.Error(), "\n", "; "))
		}
	}
	return strings.Join(faults, "; ")
}

// renew brings the secrets of one proxy up to date.
func renew(ctx context.Context, e Epoch, reader secretReader) error {
	secrets := e.Secrets()
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
		dir, before := secretDir{filepath.Join(secrets, source.Name), Owner{g.UID, g.GID}}, source.RenewAt
		err := dir.prune()
		if err == nil && !time.Now().Before(before) {
			err = renewSource(ctx, e, reader, source, dir)
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

// renewSource replaces the files of a source if they have changed. Rotated is noted first: if the agent is killed in between, there may
// be one new proxy too many, which does no harm, but none is missed.
func renewSource(ctx context.Context, e Epoch, reader secretReader, source *grantedSource, dir secretDir) error {
	files, renewAt, err := reader.read(ctx, *source)
	if err != nil || dir.holds(files) {
		return err
	}
	if source.UpgradeOnRotation {
		if err := e.Note(Rotated); err != nil {
			return err
		}
	}
	if err := dir.replace(files, time.Now()); err != nil {
		return err
	}
	source.RenewAt = renewAt
	log.FromContext(ctx).Info("secret of a proxy renewed", "secret", source.Name, "epoch", e.number)
	return nil
}
