/* info.c: the facts of a file, gathered from its parts; pure.
 * SPDX-License-Identifier: Apache-2.0 */
#include "info.h"

#include <string.h>

#include "status.h"

#include "ban.h"

enum kvc_status kvci_info_fill(const struct kvci_header *header, const struct kvci_footer *footer,
                               const struct kvci_metadata *metadata,
                               const struct kvci_geometry *geometry, bool tag_checked,
                               struct kvc_info *ret_info, struct kvc_error *error)
{
    if (ret_info->size != sizeof(*ret_info)) {
        return kvci_fail(error, KVC_E_OPTION, KVC_NO_OFFSET,
                         "kvc_info.size is %zu, expected %zu: use KVC_INFO_INIT", ret_info->size,
                         sizeof(*ret_info));
    }
    struct kvci_places places = {0};
    (void)kvci_header_places(header, &places);
    struct kvc_info info = {
        .size = sizeof(info),
        .has_tag = footer->has_tag,
        .tag_checked = tag_checked,
        .version_major = header->version_major,
        .version_minor = header->version_minor,
        .incompat = header->incompat,
        .ro_compat = header->ro_compat,
        .compat = header->compat,
        .file_bytes = header->file_bytes,
        .metadata_bytes = header->metadata_bytes,
        .payload_offset = places.payload_offset,
        .payload_span = header->payload_span,
        .payload_bytes = geometry->payload_bytes,
        .chunk_count = geometry->chunk_count,
        .align_bytes = UINT32_C(1) << header->align_log2,
        .tensor_count = header->tensor_count,
        .manifest_version = geometry->manifest_version,
        .layers = metadata->layers,
        .kv_heads = metadata->kv_heads,
        .head_dim = metadata->head_dim,
        .batch_size = geometry->batch_size,
        .sequence_start = metadata->sequence_start,
        .sequence_length = metadata->sequence_length,
        .rope_theta = metadata->rope_theta,
        .dtype = metadata->dtype != NULL ? metadata->dtype->name : "",
    };
    memcpy(info.root, footer->root, sizeof(info.root));
    *ret_info = info;
    return KVC_OK;
}
