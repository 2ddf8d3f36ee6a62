#!/bin/sh
# Renews certificates before they expire and signs a new revocation list. Run it daily where the CA's key is:
#
#     rotate-certificates.sh KEYS [DESTINATION...]
#
# KEYS is the keys directory. Each DESTINATION (a directory, or user@host:directory for rsync over ssh, as the user that
# runs the server there) gets the new versions of the files whose names it already holds: certificates, keys, ca.pem,
# crl.pem. Servers notice new files by themselves within two seconds; nothing is restarted. ca.key never leaves KEYS.
# A destination that fails is reported, the others are served, and the exit code is 1.
#
# WITHIN_DAYS (30): renew what ends within this time.  DAYS (365): validity of what is issued.  CRL_DAYS (30).
set -eu

keys=${1:?usage: rotate-certificates.sh KEYS [DESTINATION...]}
shift
[ -f "$keys/ca.key" ] || { echo "$keys has no ca.key: run this where the CA is" >&2; exit 1; }

dovetail keys renew --dir "$keys" --within "${WITHIN_DAYS:-30}" --days "${DAYS:-365}"
dovetail keys crl --dir "$keys" --days "${CRL_DAYS:-30}"

# The keys first: a server that finds a certificate without its key keeps the pair that it has. A file that is replaced
# keeps its mode and, in a local directory, its owner.
copy() {
    [ -d "$1" ] || { echo "$1 is not a directory" >&2; return 1; }
    for file in "$keys"/*.key "$keys"/*.pem; do
        held=$1/${file##*/}
        if [ "$held" != "$1/ca.key" ] && [ -f "$held" ] && ! cmp -s "$file" "$held"; then
            cp -p "$held" "$held.new" && cat "$file" > "$held.new" && mv "$held.new" "$held" || return 1
            echo "$held"
        fi
    done
}

synchronize() {
    for kind in key pem; do
        rsync --checksum --times --existing --exclude ca.key --out-format "$1/%n" "$keys"/*."$kind" "$1/./" || return 1
    done
}

failed=0
for destination; do
    case $destination in
        *:*) synchronize "$destination" ;;
        *) copy "$destination" ;;
    esac || { echo "$destination has not received all files" >&2; failed=1; }
done
exit "$failed"
