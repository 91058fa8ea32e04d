package commands

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
)

// clusterError says what an error of the API server means for the person who asked, and what to do. Other errors stay as they are.
func clusterError(config *rest.Config, err error) error {
	var certificate *tls.CertificateVerificationError
	var network net.Error
	var request *url.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		return err
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the cluster at %s does not accept the credentials (they may have expired): log in again, or choose another --context: %w", config.Host, err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: an administrator can grant the right; config/samples/status-reader.yaml has all that are needed", err)
	case noCredentials(err):
		return fmt.Errorf("the command that the kubeconfig names for credentials gives none for %s: log in again, or install it: %w", config.Host, err)
	case noAPI(err):
		return fmt.Errorf("what answers at %s is no API server of Kubernetes, but perhaps a page to log in, or a proxy; is it the right --context? %w", config.Host, err)
	case errors.As(err, &certificate):
		return fmt.Errorf("the server at %s does not show the certificate that the kubeconfig expects; is it the right cluster? %w", config.Host, certificate)
	case errors.As(err, &network) && network.Timeout() || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || noTimeLeft(err):
		return fmt.Errorf("the cluster at %s did not answer in time; is it up, and reachable from here? %w", config.Host, err)
	case errors.As(err, &request):
		return fmt.Errorf("the cluster at %s cannot be reached; is it up, and is it the right --context? %w", config.Host, request.Err)
	}
	return err
}

// noCredentials reports whether the program that the kubeconfig names for credentials failed, as it does when a login has expired. The cluster was
// not asked then. client-go has no type for it.
func noCredentials(err error) bool { return strings.Contains(err.Error(), "getting credentials: ") }

// noTimeLeft reports whether the time was over before a request could be sent, which only the client's rate limiter notices. It has no type for it.
func noTimeLeft(err error) bool {
	return strings.Contains(err.Error(), "would exceed context deadline")
}

// noAPI reports whether something else than an API server has answered, such as a web server. client-go has no type for it.
func noAPI(err error) bool {
	return strings.Contains(err.Error(), "serializer for text/html") || strings.Contains(err.Error(), "unable to parse the server version")
}

// unasked reports whether the cluster did not answer, or not to these credentials: other flags of the command change nothing then.
func unasked(err error) bool {
	var request *url.Error
	return err != nil && (errors.As(err, &request) || apierrors.IsUnauthorized(err) || apierrors.IsTimeout(err) || noTimeLeft(err) || noAPI(err))
}
